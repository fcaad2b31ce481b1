"""What quality is measured by: tasks, their formats, and small sets that come with the project."""
