#include "troupe/actors/process/service_manager.hpp"

#include "tests/devices/temporary_folder.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace troupe;

namespace {

// Whoever listens as a service manager does; a name that begins with '@' is abstract.
struct manager {
  explicit manager(const std::string& name) : fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    BOOST_TEST_REQUIRE(name.size() < sizeof at.sun_path);
    std::memcpy(at.sun_path, name.data(), name.size());
    if (name[0] == '@') at.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    BOOST_TEST_REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&at), size) == 0);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(fd);
  }
  std::string heard() const {
    char text[256];
    const auto n = ::recv(fd, text, sizeof text, MSG_DONTWAIT);
    return n < 0 ? std::string() : std::string(text, static_cast<std::size_t>(n));
  }
  int fd;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(service_manager)

BOOST_AUTO_TEST_CASE(lines_arrive_at_a_path_and_at_an_abstract_name) {
  const test::temporary_folder folder;
  for (const auto& name :
       {folder.path() + "/notify", "@troupe-test-" + std::to_string(::getpid())}) {
    const manager m(name);
    BOOST_TEST(tell_service_manager("READY=1\nSTATUS=listening"));
    BOOST_TEST(m.heard() == "READY=1\nSTATUS=listening");
    BOOST_TEST(m.heard().empty());
  }
}

BOOST_AUTO_TEST_CASE(without_a_manager_nothing_is_said) {
  ::unsetenv("NOTIFY_SOCKET");
  BOOST_TEST(!tell_service_manager("READY=1"));
  const std::string too_long(200, 'x');
  for (const auto& name : {std::string("/no/such/socket"), std::string("relative"), std::string(),
                           std::string("@"), "/" + too_long}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    BOOST_TEST(!tell_service_manager("READY=1"), name);
  }
  ::unsetenv("NOTIFY_SOCKET");
}

BOOST_AUTO_TEST_SUITE_END()
