"""What `rlvr-debug check` is measured with: users' scripts of TRL, healthy and faulty. Nothing here is part of the check."""
