"""What watches a run: spikes of the loss, stalls, memory, and what an early end says."""
