"""What a model will take on devices that are not at hand, by arithmetic: memory, time, and what a method gains."""
