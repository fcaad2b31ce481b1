"""What drives the device from the host: requests, sessions, prompts in and completions out, measured costs."""
