"""What a step and an evaluation share: batches on the device, sums of losses, messages between ranks, times."""
