"""The pages under ``/ui``, made with NiceGUI."""
