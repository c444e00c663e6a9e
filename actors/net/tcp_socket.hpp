#pragma once
// What the TCP transport needs of the operating system: a descriptor with an owner, socket
// addresses, listening, looking names up.
//
// Threading: none of its own. name_lookup owns a thread for as long as a lookup takes.

#include "troupe/runtime/text/address.hpp"
#include "troupe/schema/error.hpp"

#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class unique_fd {
 public:
  unique_fd() noexcept = default;
  explicit unique_fd(int fd) noexcept : fd_(fd) {}
  unique_fd(unique_fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  unique_fd& operator=(unique_fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~unique_fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

struct socket_address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
};

// "Connection refused"
std::string system_message(int number);

address to_address(const socket_address& a);
// Of the other end and of this end of a connected socket; "?" when it is gone already.
address peer_of(int fd);
address local_address_of(int fd);

// Without asking anybody: numeric hosts, and localhost (127.0.0.1, then ::1). Empty for other
// names.
std::vector<socket_address> known_addresses(const address& a);
// Asks the system's resolver, which may take seconds.
result<std::vector<socket_address>> look_up(const address& a);

// Bound, listening and non-blocking.
result<unique_fd> open_listener(const address& at);
// Non-blocking, TCP_NODELAY.
result<unique_fd> open_stream_socket(int family);
void set_stream_options(int fd);

// A lookup on a thread of its own. fd() becomes readable when answer() may be called. The object
// may go before the answer comes.
class name_lookup {
 public:
  static result<name_lookup> start(const address& a);
  int fd() const noexcept { return shared_->ready.get(); }
  result<std::vector<socket_address>> answer() const;

 private:
  struct shared {
    unique_fd ready;
    std::atomic<bool> is_done{false};
    std::unique_ptr<result<std::vector<socket_address>>> found;  // written before is_done
  };
  explicit name_lookup(std::shared_ptr<shared> s) : shared_(std::move(s)) {}
  std::shared_ptr<shared> shared_;
};

}  // namespace troupe
