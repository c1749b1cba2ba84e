// Looks at a computation after each of its machine instructions, that is at
// every point at which a process can die.
#ifndef KERNELS_SINGLE_STEP_H_
#define KERNELS_SINGLE_STEP_H_

#include <cstdint>
#include <functional>
#include <string>

namespace ballast::kernels {

// Runs `work` in a forked child, instruction by instruction, and `check` here
// after each, until it says what is wrong. What `check` looks at has to be
// memory that the two share. Returns that, "" if nothing is. `*instructions`
// counts; it stays 0, and nothing runs, where the machine does not let one
// process trace another, and under sanitizers: the instructions of a program
// with their checks are not those that the product dies at.
std::string ForEachInstruction(const std::function<void()>& work,
                               const std::function<std::string()>& check,
                               int64_t* instructions);

}  // namespace ballast::kernels

#endif  // KERNELS_SINGLE_STEP_H_
