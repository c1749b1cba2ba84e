// Version and compiler of this build.
#ifndef SERVER_DAEMON_VERSION_H_
#define SERVER_DAEMON_VERSION_H_

namespace ballast::daemon {

inline constexpr char kVersion[] = "0.1.0";
inline constexpr char kCompiler[] = "gcc " __VERSION__;

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_VERSION_H_
