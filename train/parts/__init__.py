"""What is trained: on its own or beside frozen weights. `part` says what a part is, each other file is one."""
