"""What the project claims, each with the report that shows it, and the pages that are made of them."""
