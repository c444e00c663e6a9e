#include "troupe/actors/net/discovery.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view suffix = ".sock";
constexpr std::string_view greeting = "troupe 1 ";
constexpr std::size_t place_answer_bytes_max = 512;
constexpr int answers_at_once = 64;
constexpr int backlog = 256;
constexpr std::size_t asked_max = 4096;
constexpr std::size_t read_bytes = 512;  // at once

struct wiped_at_end {
  std::string& text;
  ~wiped_at_end() { wipe(text); }
};

std::string reason() { return std::strerror(errno); }

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void shut(int& fd) noexcept {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

// "<16 digits>.sock"
std::optional<node_id> id_of(std::string_view file) {
  if (file.size() != 16 + suffix.size() || !file.ends_with(suffix)) return std::nullopt;
  std::uint64_t id = 0;
  const auto* end = file.data() + 16;
  const auto parsed = std::from_chars(file.data(), end, id, 16);
  if (parsed.ec != std::errc{} || parsed.ptr != end || file != fmt::format("{:016x}{}", id, suffix))
    return std::nullopt;
  return node_id{id};
}

bool fill(sockaddr_un& to, const std::string& path) {
  if (path.size() >= sizeof(to.sun_path)) return false;
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.c_str(), path.size() + 1);
  return true;
}

// A folder of ours that nobody else may enter, made if need be: DI-3.
result<void> make_private(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return error(error_code::usage, fmt::format("cannot make the folder {}: {}", path, reason()));
  struct stat s{};
  if (::lstat(path.c_str(), &s) != 0)
    return error(error_code::usage,
                 fmt::format("cannot look at the folder {}: {}", path, reason()));
  if (!S_ISDIR(s.st_mode))
    return error(error_code::denied, fmt::format("{} is not a folder: remove it", path));
  if (s.st_uid != ::geteuid())
    return error(
        error_code::denied,
        fmt::format(
            "the folder {} belongs to user {}, not to user {}: remove it, or set XDG_RUNTIME_DIR to a "
            "folder of your own",
            path, s.st_uid, ::geteuid()));
  if ((s.st_mode & 0077) != 0)
    return error(error_code::denied,
                 fmt::format("others may enter the folder {} (mode {:04o}): chmod 700 {}", path,
                             s.st_mode & 07777, path));
  return {};
}

// What a process that died in the middle of it left behind.
void remove_old_aside(const std::filesystem::path& path) {
  constexpr std::time_t old_seconds = 60;
  const auto name = path.filename().native();
  if (!name.ends_with(".sock.") && !name.starts_with(".token-")) return;
  struct stat s{};
  if (::lstat(path.c_str(), &s) == 0 && ::time(nullptr) - s.st_mtime > old_seconds)
    ::unlink(path.c_str());
}

bool is_own_folder(const std::string& path) {
  struct stat s{};
  return !path.empty() && ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode) &&
         s.st_uid == ::geteuid();
}

// Who may write to the folder above may swap ours for another one, of his: DI-3.
result<void> check_parent(const std::string& path, std::string_view variable) {
  struct stat s{};
  if (::stat(path.c_str(), &s) != 0 || (s.st_mode & 0022) == 0 || (s.st_mode & S_ISVTX) != 0)
    return {};
  return error(error_code::denied,
               fmt::format("others may write to the folder {} (mode {:04o}), and so could put a "
                           "folder of their own in place of the cluster's: chmod go-w {}, or set "
                           "{} to a folder of your own",
                           path, s.st_mode & 07777, path, variable));
}

// The whole of a small answer or file, as far as it is there.
enum class read_end : std::uint8_t { more, end, failed };
read_end read_some(int fd, std::string& text, std::size_t size_max) {
  std::array<char, read_bytes> buffer;
  struct wiped_buffer {
    std::array<char, read_bytes>& bytes;
    ~wiped_buffer() { ::explicit_bzero(bytes.data(), bytes.size()); }
  } const wipes{buffer};
  for (;;) {
    const auto n = ::read(fd, buffer.data(), buffer.size());
    if (n == 0) return read_end::end;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? read_end::more : read_end::failed;
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > size_max) return read_end::failed;
  }
}

std::optional<std::string> address_in(std::string_view text, node_id id) {
  const auto expected = fmt::format("{}{:016x} ", greeting, raw(id));
  if (!text.starts_with(expected) || !text.ends_with('\n')) return std::nullopt;
  text.remove_prefix(expected.size());
  text.remove_suffix(1);
  if (text.empty() || text.find_first_of(" \n") != std::string_view::npos) return std::nullopt;
  return std::string(text);
}

}  // namespace

result<void> check_cluster_name(std::string_view name) {
  constexpr std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > 64 || name == "." || name == ".." ||
      name.find_first_not_of(allowed) != std::string_view::npos)
    return error(
        error_code::usage,
        fmt::format("{:?} is no name for a cluster: 1 to 64 letters, digits, '.', '_' or '-'",
                    name));
  return {};
}

result<secret> read_token_file(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return error(error_code::usage,
                 fmt::format("cannot read the token file {}: {}", path, reason()));
  struct stat s{};
  std::string token;
  token.reserve(token_bytes_max + read_bytes);  // it never moves, so that wiping it leaves no copy
  const wiped_at_end wipes{token};
  const bool is_file = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  const bool is_private = (s.st_mode & 0077) == 0;
  const bool is_ours = s.st_uid == ::geteuid() || s.st_uid == 0;
  const auto read =
      is_file && is_private && is_ours ? read_some(fd, token, token_bytes_max) : read_end::failed;
  shut(fd);
  if (!is_file)
    return error(error_code::usage, fmt::format("the token file {} is not a file", path));
  if (!is_ours)
    return error(
        error_code::denied,
        fmt::format("the token file {} belongs to user {}: use one of your own", path, s.st_uid));
  if (!is_private)
    return error(error_code::denied,
                 fmt::format("others may read the token file {} (mode {:04o}): chmod 600 {}", path,
                             s.st_mode & 07777, path));
  if (read != read_end::end)
    return error(error_code::usage,
                 fmt::format("the token file {} is longer than {} bytes, or cannot be read", path,
                             token_bytes_max));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < token_bytes_min)
    return error(
        error_code::usage,
        fmt::format("the token file {} {}, and a token has at least {} bytes, so that it cannot be "
                    "guessed: (umask 077; openssl rand -hex 32 > {}) makes one",
                    path, token.empty() ? "is empty" : fmt::format("holds {} bytes", token.size()),
                    token_bytes_min, path));
  return secret(token);
}

discovery_roots discovery_roots::of_environment() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  auto temporary = variable("TMPDIR");
  return {variable("XDG_RUNTIME_DIR"), temporary.empty() ? "/tmp" : std::move(temporary)};
}

// --- the folder ----------------------------------------------------------------------------------

result<discovery> discovery::open(const discovery_roots& roots, std::string_view cluster) {
  if (auto named = check_cluster_name(cluster); !named) return named.error();
  const bool has_runtime = is_own_folder(roots.runtime);
  const auto base = has_runtime ? roots.runtime + "/troupe"
                                : fmt::format("{}/troupe-{}", roots.temporary, ::geteuid());
  if (auto safe = check_parent(has_runtime ? roots.runtime : roots.temporary,
                               has_runtime ? "XDG_RUNTIME_DIR" : "TMPDIR");
      !safe)
    return safe.error();
  discovery d;
  d.folder_ = fmt::format("{}/{}", base, cluster);
  // While it is not listening yet, a socket has a name that is longer by a dot.
  sockaddr_un probe{};
  const auto longest = d.path_of(node_id{}) + ".";
  if (!fill(probe, longest))
    return error(
        error_code::usage,
        fmt::format(
            "{} has {} bytes, and the name of a socket at most {}: choose a shorter name for the cluster, or "
            "set XDG_RUNTIME_DIR to a folder with a shorter path",
            longest, longest.size(), sizeof(probe.sun_path) - 1));
  for (const auto& folder : {base, d.folder_})
    if (auto made = make_private(folder); !made) return made.error();
  d.spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return d;
}

discovery::~discovery() { close_all(); }

discovery::discovery(discovery&& o) noexcept { *this = std::move(o); }

discovery& discovery::operator=(discovery&& o) noexcept {
  if (this == &o) return *this;
  close_all();
  folder_ = std::move(o.folder_);
  address_ = std::move(o.address_);
  self_ = o.self_;
  listener_ = std::exchange(o.listener_, -1);
  spare_ = std::exchange(o.spare_, -1);
  found_ = std::move(o.found_);
  asked_ = std::exchange(o.asked_, {});
  stale_ = o.stale_;
  return *this;
}

void discovery::close_all() noexcept {
  if (listener_ >= 0) ::unlink(path_of(self_).c_str());
  shut(listener_);
  shut(spare_);
  for (auto& [id, q] : asked_) shut(q.fd);
  asked_.clear();
}

std::string discovery::path_of(node_id id) const {
  return fmt::format("{}/{:016x}{}", folder_, raw(id), suffix);
}

// Written aside, then linked under its name, which fails for all but the first.
result<secret> discovery::shared_token() const {
  const auto path = folder_ + "/token";
  if (::access(path.c_str(), F_OK) == 0) return read_token_file(path);
  std::array<unsigned char, 32> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return error(error_code::failed, fmt::format("no random bytes for a token: {}", reason()));
  std::string text;
  text.reserve(2 * random.size() + 1);
  const wiped_at_end wipes{text};
  for (auto b : random)
    for (auto digit : {b >> 4, b & 15}) text += "0123456789abcdef"[digit];
  text += '\n';
  ::explicit_bzero(random.data(), random.size());
  std::uint64_t mark = 0;  // no part of the token stands in a name
  if (::getrandom(&mark, sizeof mark, 0) != static_cast<ssize_t>(sizeof mark))
    return error(error_code::failed, fmt::format("no random bytes for a file: {}", reason()));
  const auto aside = fmt::format("{}/.token-{}-{:016x}", folder_, ::getpid(), mark);
  int fd = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool is_written =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool is_linked =
      is_written && (::link(aside.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const auto why = reason();
  shut(fd);
  ::unlink(aside.c_str());
  if (!is_linked)
    return error(error_code::usage, fmt::format("cannot write the token file {}: {}", path, why));
  return read_token_file(path);
}

// --- our socket ----------------------------------------------------------------------------------

result<void> discovery::announce(node_id id, const std::string& address) {
  const auto path = path_of(id);
  const auto aside = path + ".";
  sockaddr_un at{};
  fill(at, aside);
  ::unlink(aside.c_str());
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool is_named = fd >= 0 &&
                        ::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 &&
                        ::listen(fd, backlog) == 0 && ::rename(aside.c_str(), path.c_str()) == 0;
  if (!is_named) {
    const auto why = reason();
    ::unlink(aside.c_str());
    shut(fd);
    return error(error_code::failed, fmt::format("cannot listen at {}: {}", path, why));
  }
  if (listener_ >= 0 && self_ != id) ::unlink(path_of(self_).c_str());
  shut(listener_);
  listener_ = fd;
  self_ = id;
  address_ = address;
  return {};
}

void discovery::answer() {
  if (listener_ < 0) return;
  const auto line = fmt::format("{}{:016x} {}\n", greeting, raw(self_), address_);
  for (int i = 0; i < answers_at_once; ++i) {
    int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_ >= 0) {
      // Without a descriptor nobody can be answered; but who stays in the queue wakes the loop for
      // ever.
      shut(spare_);
      fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      shut(fd);
      spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      continue;
    }
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return;
    // A line fits into any socket's buffer. Who has gone in the meantime does not matter.
    (void)!::send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shut(fd);
  }
}

// --- the others ----------------------------------------------------------------------------------

std::vector<discovery_entry> discovery::entries(const std::function<bool(node_id)>& is_known,
                                                int wait_ms) {
  const auto start = now_ms();
  std::vector<node_id> present;
  std::error_code failed;
  for (std::filesystem::directory_iterator it(folder_, failed), end; !failed && it != end;
       it.increment(failed)) {
    const auto id = id_of(it->path().filename().native());
    if (!id) remove_old_aside(it->path());
    if (id && (listener_ < 0 || *id != self_)) present.push_back(*id);
  }
  std::sort(present.begin(), present.end());
  forget(present);
  for (auto id : present)
    if (!is_known(id)) ask(id, start);
  wait_for_answers(start, wait_ms);
  std::vector<discovery_entry> out;
  for (const auto& [id, address] : found_)
    if (!is_known(id)) out.push_back({id, address});
  return out;
}

std::vector<discovery_entry> discovery::first_entries(const std::function<bool(node_id)>& is_known,
                                                      int wait_ms, int limit_ms) {
  constexpr std::int64_t looks_each_ms = 50;
  const auto end = now_ms() + limit_ms;
  auto found = entries(is_known, wait_ms);
  for (auto left = end - now_ms(); found.empty() && !asked_.empty() && left > 0;
       left = end - now_ms()) {
    std::vector<pollfd> fds;
    for (const auto& [id, q] : asked_)
      if (q.fd >= 0) fds.push_back({q.fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min(left, looks_each_ms)));
    found = entries(is_known, 0);
  }
  return found;
}

// What is no longer in the folder.
void discovery::forget(const std::vector<node_id>& present) {
  const auto is_gone = [&](node_id id) {
    return !std::binary_search(present.begin(), present.end(), id);
  };
  std::erase_if(found_, [&](const auto& e) { return is_gone(e.first); });
  for (auto& [id, q] : asked_)
    if (is_gone(id)) shut(q.fd);
  std::erase_if(asked_, [&](const auto& e) { return is_gone(e.first); });
}

void discovery::ask(node_id id, std::int64_t now) {
  if (found_.contains(id)) return;
  const auto at = asked_.find(id);
  if (at == asked_.end() ? asked_.size() >= asked_max : now - at->second.asked_ms < ask_again_ms)
    return;
  auto& q = asked_[id];
  shut(q.fd);
  q.text.clear();
  q.asked_ms = now;
  sockaddr_un to{};
  fill(to, path_of(id));
  q.fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (q.fd < 0 || ::connect(q.fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return;
  const bool is_stale = errno == ECONNREFUSED;  // DI-1; EAGAIN is one whom many ask at once
  shut(q.fd);
  if (!is_stale) return;
  if (::unlink(path_of(id).c_str()) == 0) ++stale_;
  asked_.erase(id);
}

// True while an answer is still to come.
bool discovery::read_answers() {
  bool is_waiting = false;
  for (auto at = asked_.begin(); at != asked_.end();) {
    auto& [id, q] = *at;
    const auto read = q.fd < 0 ? read_end::failed : read_some(q.fd, q.text, place_answer_bytes_max);
    if (read == read_end::more) {
      is_waiting = true;
      ++at;
      continue;
    }
    shut(q.fd);
    auto address = read == read_end::end ? address_in(q.text, id) : std::nullopt;
    if (address) found_.insert_or_assign(id, std::move(*address));
    at = address ? asked_.erase(at) : std::next(at);
  }
  return is_waiting;
}

void discovery::wait_for_answers(std::int64_t from, int wait_ms) {
  for (;;) {
    (void)read_answers();
    std::vector<pollfd> fds;
    for (const auto& [id, q] : asked_)
      if (q.fd >= 0 && q.asked_ms == from) fds.push_back({q.fd, POLLIN, 0});
    const auto left = from + wait_ms - now_ms();
    if (fds.empty() || left <= 0) return;
    if (listener_ >= 0) fds.push_back({listener_, POLLIN, 0});  // DI-2: they may be waiting for us
    ::poll(fds.data(), fds.size(), static_cast<int>(left));
    answer();
  }
}

}  // namespace troupe
