#pragma once
// The memory of another process of this machine, read where it lies: one copy, where a socket takes
// two.
//
// Linux lets a process read another one's memory (process_vm_readv) by the rules for debuggers: of
// the same user, in the same or an inner space of process ids, unless the system restricts it
// further (Yama: kernel.yama.ptrace_scope above 0, a container's filter of system calls). So it is
// tried: a process tells its peers, once they are proven, where a word of its lies and what it says
// (memory_probe in the identity frame). Each connection has a word of its own.
//
//   who sends                                             who reads
//   own_probe word(random); tells where() it lies   ->    peer_memory::open(pid, where)
//   a frame that says where its payload lies        ->    read(): the payload, then the word
//   keeps the payload as it is until the frame is acknowledged, or word.withdraw(), then lets go of
//   it
//
// PE-1  open() gives memory only if the word is there: a process of the same number elsewhere, or
//       another one by now, is not taken for the peer.
// PE-2  A read gives all bytes or fails: the peer has ended, or the address is none of its, or the
//       memory is not an ordinary one (a device's).
// PE-3  A read fails if the word does not say any more what it said, and looks at the word after
//       the last byte of the payload. Who sends withdraws the word before anything that the peer
//       was told to read, and has not acknowledged, may be written again or freed. So bytes that
//       have changed are never taken for the payload: either the frame still held its tensor when
//       the last byte was read, or the word was withdrawn by then.
// PE-4  A process reads what a peer tells it to only over a connection within this machine, from a
//       peer that has proven itself (actors/cluster/member.cpp). What such a peer could make of it
//       is no more than it may do anyway.
//
// Threading: none of its own; values. The word may be read at any time, by anybody.

#include "troupe/runtime/wire/control_message.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace troupe {

// Whether a process reads others and lets itself be read.
enum class direct_reads : std::uint8_t {
  automatic,  // where the system allows it
  on,         // and let it allow every process of this user to, where Yama restricts it to parents
  off,
};
std::optional<direct_reads> parse_direct_reads(std::string_view text);  // auto, on, off
// What `how` asks of the system, for the whole process.
void permit_reads(direct_reads how) noexcept;

class peer_memory {
 public:
  // PE-1. nullopt: it cannot be read from here.
  static std::optional<peer_memory> open(std::uint32_t pid, const memory_probe& probe) noexcept;
  // PE-2, PE-3. After a failure `to` holds anything.
  bool read(std::span<std::byte> to, std::uint64_t address) const noexcept;

 private:
  peer_memory(std::uint32_t pid, const memory_probe& probe) noexcept : pid_(pid), probe_(probe) {}
  std::uint32_t pid_;
  memory_probe probe_;
};

// The word of one connection; it lies there as long as this lives, and is withdrawn at its end.
class own_probe {
 public:
  own_probe() noexcept = default;            // none: nobody shall read
  explicit own_probe(std::uint64_t random);  // what it says; nobody else can know it
  own_probe(own_probe&&) noexcept = default;
  own_probe& operator=(own_probe&& o) noexcept;
  ~own_probe() { withdraw(); }

  explicit operator bool() const noexcept { return word_ != nullptr; }
  memory_probe where() const noexcept;  // address 0: there is none
  // PE-3. There is none afterwards.
  void withdraw() noexcept;

 private:
  std::unique_ptr<std::atomic<std::uint64_t>> word_;
};

}  // namespace troupe
