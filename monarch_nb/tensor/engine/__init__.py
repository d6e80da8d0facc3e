"""The part of tensors that runs on the controller: commands are issued and sent."""
