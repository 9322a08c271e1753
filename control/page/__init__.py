"""The page under ``/ui``, made with NiceGUI, and the login form before it."""
