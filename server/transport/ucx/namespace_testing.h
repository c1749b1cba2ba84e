// Two network namespaces joined by a veth pair, and processes in them, for
// tests and benches that need a real link. Needs root and `ip`. Everything is
// removed by its own name in the destructors.
#ifndef SERVER_TRANSPORT_UCX_NAMESPACE_TESTING_H_
#define SERVER_TRANSPORT_UCX_NAMESPACE_TESTING_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/unique_fd.h"

namespace ballast::transport {

class TwoNamespaces {
 public:
  // PermissionDenied without the right to make namespaces.
  static absl::StatusOr<std::unique_ptr<TwoNamespaces>> Create();
  ~TwoNamespaces();

  TwoNamespaces(const TwoNamespaces&) = delete;
  TwoNamespaces& operator=(const TwoNamespaces&) = delete;

  std::string name(int side) const;
  std::string device(int side) const;
  std::string address(int side) const;
  absl::StatusOr<uint64_t> TransmittedBytes(int side) const;
  absl::Status CutLink(int side);

 private:
  explicit TwoNamespaces(int id) : id_(id) {}
  absl::Status AwaitRunning(int side) const;

  const int id_;
};

// A forked process; messages go both ways over a socket.
class ChildProcess {
 public:
  // One end of the socket: whole messages of at most 64 KiB.
  class Channel {
   public:
    explicit Channel(base::UniqueFd fd) : fd_(std::move(fd)) {}
    void Send(const std::string& message);
    // nullopt: the other end is gone, or nothing came in time.
    std::optional<std::string> Receive(absl::Duration timeout);
    int fd() const { return fd_.get(); }

   private:
    base::UniqueFd fd_;
  };

  // `main` runs in the child, in the named namespace if there is one. To be
  // called before this process has threads.
  static std::unique_ptr<ChildProcess> Start(
      const std::string& network_namespace, std::function<void(Channel*)> main);
  ~ChildProcess();  // kills

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Channel* channel() { return &channel_; }
  void Signal(int signal);

 private:
  ChildProcess(pid_t pid, base::UniqueFd fd)
      : pid_(pid), channel_(std::move(fd)) {}

  const pid_t pid_;
  Channel channel_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_NAMESPACE_TESTING_H_
