// XXH3 with the widest vectors that the processor has: Debian's library picks
// them at run time, if it is asked through a header of its own. The values are
// the same.
//
// Source: Y. Collet, xxHash 0.8.1, "xxh_x86dispatch.h".
#ifndef SERVER_BASE_XXH3_H_
#define SERVER_BASE_XXH3_H_

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif  // SERVER_BASE_XXH3_H_
