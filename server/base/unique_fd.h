// A file descriptor that is closed with its owner. Empty (-1) is valid.
//
// Threading: thread-compatible.
#ifndef SERVER_BASE_UNIQUE_FD_H_
#define SERVER_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace ballast::base {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    // Not retried on EINTR: Linux has released the number by then.
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_UNIQUE_FD_H_
