#include "troupe/actors/process/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace troupe {

bool tell_service_manager(std::string_view lines) {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr) return false;
  sockaddr_un to{};
  const auto size = std::strlen(name);
  // A path, or '@' and an abstract name.
  if ((*name != '/' && *name != '@') || size < 2 || size >= sizeof to.sun_path) return false;
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, name, size);
  if (*name == '@') to.sun_path[0] = '\0';
  const int out = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (out < 0) return false;
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  const auto sent = ::sendto(out, lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                             reinterpret_cast<const sockaddr*>(&to), bytes);
  ::close(out);
  return sent == static_cast<ssize_t>(lines.size());
}

}  // namespace troupe
