// How many descriptors a keeper may hold, by the limits of its process.
#ifndef SERVER_KEEPER_DESCRIPTOR_LIMIT_H_
#define SERVER_KEEPER_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

namespace ballast::keeper {

// Raises the soft limit of this process (RLIMIT_NOFILE) to the hard one; what
// it is then.
rlim_t RaiseDescriptorLimit();

// Of `wanted`, what a process of this limit may hold beside its own.
int HoldableUnder(rlim_t limit, int wanted);

}  // namespace ballast::keeper

#endif  // SERVER_KEEPER_DESCRIPTOR_LIMIT_H_
