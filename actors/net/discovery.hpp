#pragma once
// Finding each other on one machine: a folder of sockets for each cluster of a user.
//
//   ${XDG_RUNTIME_DIR}/troupe/CLUSTER, else <temporary folder>/troupe-UID/CLUSTER      mode 0700
//     <16 hexadecimal digits>.sock   the socket of a process with that node id; who connects reads
//                                    one line,
//                                    "troupe 1 ID HOST:PORT\n", and the end
//     token                          mode 0600: what the processes of this user prove to each other
//                                    by default
//
// Threading: one owner. entries() waits `wait_ms` at most, first_entries() `limit_ms`;
// everything else does not block.
//
// DI-1  A socket gets its name once it listens. So a name at which nobody listens is a process that
//       is gone, and is removed.
// DI-2  Announce, then ask: of two processes that start at the same time at least one finds the
//       other. While it waits for the answers of others, a process answers itself.
// DI-3  A folder that belongs to somebody else, or that others may enter, is refused; so is a token
//       file that others may read, and a folder to make ours in that others may write to, unless
//       they may not rename what is ours (the sticky bit, as /tmp has it).
// DI-4  The token is made once: of several processes that start at the same time all use the same.
// DI-5  A process that does not answer, or answers nonsense, costs others `wait_ms` every
//       ask_again_ms, and is never removed.

#include "troupe/runtime/wire/secret.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/ids.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::int64_t ask_again_ms = 2000;
inline constexpr std::size_t token_bytes_max = 4096;
// A node that connects somewhere proves itself first, and whoever listens there learns enough to
// try guesses by itself, as many as it likes: a word is found within seconds, 16 random bytes
// never.
inline constexpr std::size_t token_bytes_min = 16;

// [A-Za-z0-9._-]{1,64}, and neither "." nor "..". usage.
result<void> check_cluster_name(std::string_view name);

// The contents of a token file without the newline at its end. usage: missing, empty, too short,
// too long; denied: others may read it.
result<secret> read_token_file(const std::string& path);

// Folders that the folders of clusters are made in.
struct discovery_roots {
  std::string runtime;    // XDG_RUNTIME_DIR; "", missing or somebody else's: not used; one that
                          // others may write to is refused
  std::string temporary;  // TMPDIR, or /tmp
  static discovery_roots of_environment();
};

struct discovery_entry {
  node_id id{};
  std::string address;
  friend bool operator==(const discovery_entry&, const discovery_entry&) = default;
};

class discovery {
 public:
  // Makes the cluster's folder. usage: a bad name, a path too long for sockets; denied: DI-3.
  static result<discovery> open(const discovery_roots& roots, std::string_view cluster);
  ~discovery();
  discovery(discovery&&) noexcept;
  discovery& operator=(discovery&&) noexcept;

  const std::string& folder() const noexcept { return folder_; }
  // The token that all processes of this user share for this cluster: DI-4.
  result<secret> shared_token() const;

  // From now on the socket of `id` answers with `address`, and an earlier one of this object is
  // gone.
  result<void> announce(node_id id, const std::string& address);
  // Readable: call answer(). -1: not announced.
  int fd() const noexcept { return listener_; }
  // Answers whoever waits.
  void answer();

  // The processes that answer, without ourselves and without those that the caller knows; they are
  // not even asked. Waits `wait_ms` at most, and only for those that are asked for the first time;
  // later calls take what has come since.
  std::vector<discovery_entry> entries(const std::function<bool(node_id)>& is_known,
                                       int wait_ms = 50);
  // The same, until somebody has answered, where somebody is there: up to `limit_ms`, since on a
  // busy machine an answer takes as long as its process gets no core.
  std::vector<discovery_entry> first_entries(const std::function<bool(node_id)>& is_known,
                                             int wait_ms, int limit_ms);
  // Asked, and no good answer yet.
  std::size_t silent() const noexcept { return asked_.size(); }
  // Removed by entries() so far.
  std::size_t stale() const noexcept { return stale_; }

 private:
  struct question {
    int fd = -1;  // -1: could not even connect, or the answer was nonsense
    std::int64_t asked_ms = 0;
    std::string text;
  };

  discovery() = default;
  void close_all() noexcept;
  void forget(const std::vector<node_id>& present);
  void ask(node_id id, std::int64_t now_ms);
  bool read_answers();
  void wait_for_answers(std::int64_t from_ms, int wait_ms);
  std::string path_of(node_id id) const;

  std::string folder_;
  std::string address_;
  node_id self_{};
  int listener_ = -1;
  // Given up for a moment when the process has no descriptor left, so that who waits is not kept.
  int spare_ = -1;
  std::map<node_id, std::string> found_;
  std::map<node_id, question> asked_;
  std::size_t stale_ = 0;
};

}  // namespace troupe
