#pragma once
// Memory that the process has freed, and that its allocator keeps for later.

namespace troupe {

// Gives free pages of the heap back to the system; takes some milliseconds with a large heap, and
// other threads wait for it where they allocate. false: it has been done within the last second;
// call again later. Does nothing, and is true, where the C library has no malloc_trim().
//
// Threading: any.
bool return_free_memory();

}  // namespace troupe
