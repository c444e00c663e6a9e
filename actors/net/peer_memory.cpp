#include "troupe/actors/net/peer_memory.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint64_t withdrawn = 0;

iovec piece(std::uint64_t address, std::size_t bytes) noexcept {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes};
}

}  // namespace

std::optional<direct_reads> parse_direct_reads(std::string_view text) {
  if (text == "auto") return direct_reads::automatic;
  if (text == "on") return direct_reads::on;
  if (text == "off") return direct_reads::off;
  return {};
}

void permit_reads([[maybe_unused]] direct_reads how) noexcept {
#ifdef PR_SET_PTRACER
  if (how == direct_reads::on)
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // an error: there is no Yama
#endif
}

std::optional<peer_memory> peer_memory::open(std::uint32_t pid,
                                             const memory_probe& probe) noexcept {
  if (pid == 0 || pid > static_cast<std::uint32_t>(std::numeric_limits<pid_t>::max()) ||
      probe.address == 0 || probe.value == withdrawn)
    return {};
  const peer_memory m(pid, probe);
  if (!m.read({}, 0)) return {};
  return m;
}

// The kernel reads one piece after the other, in their order, so that the word is read last, by the
// same call unless that one stops early.
bool peer_memory::read(std::span<std::byte> to, std::uint64_t address) const noexcept {
  std::uint64_t word = withdrawn;
  auto said = std::as_writable_bytes(std::span(&word, 1));
  auto word_at = probe_.address;
  while (!said.empty()) {
    const std::array here{iovec{to.data(), to.size()}, iovec{said.data(), said.size()}};
    const std::array there{piece(address, to.size()), piece(word_at, said.size())};
    const auto n = ::process_vm_readv(static_cast<pid_t>(pid_), here.data(), here.size(),
                                      there.data(), there.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    const auto got = static_cast<std::size_t>(n), of_payload = std::min(got, to.size());
    to = to.subspan(of_payload);
    address += of_payload;
    said = said.subspan(got - of_payload);
    word_at += got - of_payload;
  }
  return word == probe_.value;
}

own_probe::own_probe(std::uint64_t random)
    : word_(std::make_unique<std::atomic<std::uint64_t>>(random == withdrawn ? 1 : random)) {}

own_probe& own_probe::operator=(own_probe&& o) noexcept {
  withdraw();
  word_ = std::move(o.word_);
  return *this;
}

memory_probe own_probe::where() const noexcept {
  if (word_ == nullptr) return {};
  return {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(word_.get())),
          word_->load(std::memory_order_relaxed)};
}

void own_probe::withdraw() noexcept {
  if (word_ == nullptr) return;
  // Nothing that follows is seen before it; a store, released or not, would let later ones pass it.
  word_->exchange(withdrawn, std::memory_order_seq_cst);
  word_.reset();
}

}  // namespace troupe
