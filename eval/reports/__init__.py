"""What measured files and pages made of them have in common."""
