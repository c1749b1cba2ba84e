// Comparing secrets.
#ifndef SERVER_IPC_TOKEN_H_
#define SERVER_IPC_TOKEN_H_

#include <string_view>

namespace ballast::ipc {

// In a time that depends on the sizes only.
bool ConstantTimeEquals(std::string_view a, std::string_view b);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_TOKEN_H_
