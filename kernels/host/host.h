// The kernels with vector instructions, for every instruction set that the
// compiler and this machine share; the bits are those of reference/.
//
// Thread-safe. Tables live as long as the program.
#ifndef KERNELS_HOST_HOST_H_
#define KERNELS_HOST_HOST_H_

#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace ballast::kernels {

// The best table of this machine, chosen at its first use.
const Kernels& Host();

// The instruction set behind Host(), for logs: "AVX3" is AVX-512.
std::string HostTarget();

// Every instruction set that this machine can run, best first.
std::vector<std::string> HostTargets();

// The table of one of HostTargets(), null for any other name.
const Kernels* HostFor(std::string_view target);

}  // namespace ballast::kernels

#endif  // KERNELS_HOST_HOST_H_
