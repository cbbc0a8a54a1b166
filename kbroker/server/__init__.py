"""The network side: listeners and connections, frames in and responses out, and the admin HTTP
endpoint."""
