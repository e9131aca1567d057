"""The engine on many processes: behind Ray Data (`predict --ray`) and Ray Serve (`serve --ray`)."""
