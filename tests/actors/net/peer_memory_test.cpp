// Another process's memory, read where it lies: children that are forked, whose memory is what it
// was here at the fork, and which tell what they change through a pipe.

#include "tests/support/wait.hpp"
#include "troupe/actors/net/peer_memory.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <limits>
#include <vector>

using namespace troupe;

namespace {

constexpr std::uint64_t random_word = 0x0123456789abcdef;

std::uint64_t address_of(const void* p) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p));
}

// Does what it is told, one thing for each byte that it gets, and says when it has.
class child {
 public:
  explicit child(std::vector<std::function<void()>> things = {}) {
    BOOST_REQUIRE((::pipe(to_) == 0 && ::pipe(from_) == 0));
    pid_ = ::fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    ::close(to_[1]);
    char byte = 0;
    for (auto& thing : things) {
      if (::read(to_[0], &byte, 1) != 1) break;
      thing();
      if (::write(from_[1], "x", 1) != 1) break;
    }
    while (::read(to_[0], &byte, 1) == 1) {
    }
    ::_exit(0);
  }
  ~child() {
    end();
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) ::close(fd);
  }

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  void do_next() {
    char byte = 0;
    BOOST_REQUIRE(::write(to_[1], "x", 1) == 1);
    test::wait_readable(from_[0], "the child has done what it was told");
    BOOST_REQUIRE(::read(from_[0], &byte, 1) == 1);
  }
  void end() {
    if (pid_ <= 0 || has_ended_) return;
    has_ended_ = true;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  int to_[2], from_[2];
  pid_t pid_ = -1;
  bool has_ended_ = false;
};

// Where the system forbids it there is nothing to test but that it does.
bool can_read() {
  own_probe word(random_word);
  child c;
  if (peer_memory::open(c.pid(), word.where())) return true;
  BOOST_TEST_MESSAGE(
      "skipped: this system lets no process read another one's memory (process_vm_readv)");
  return false;
}

std::vector<std::byte> some_bytes(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(peer_memory)

BOOST_AUTO_TEST_CASE(PE_2_what_another_process_has_is_read_whole_whatever_its_size) {
  if (!can_read()) return;
  own_probe word(random_word);
  const auto mine = some_bytes(3'000'001);
  auto theirs = mine;
  child c({[&] { std::ranges::reverse(theirs); }});
  const auto m = troupe::peer_memory::open(c.pid(), word.where());
  BOOST_REQUIRE(m.has_value());
  c.do_next();  // from here on it has other bytes than this process
  for (const std::size_t size : {0ul, 1ul, 4096ul, 16'384ul, mine.size()}) {
    std::vector<std::byte> to(size);
    BOOST_REQUIRE(m->read(to, address_of(theirs.data())));
    BOOST_TEST((std::equal(to.begin(), to.end(), mine.rbegin())));
  }
}

BOOST_AUTO_TEST_CASE(PE_1_a_wrong_word_a_wrong_address_and_a_wrong_process_give_nothing) {
  own_probe word(random_word);
  const auto there = word.where();
  std::uint64_t other = random_word;
  child c({[&] { other = 1; }});
  c.do_next();
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {there.address, there.value + 1}));
  // It is here, and not there.
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {address_of(&other), random_word}));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {0, 0}));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {0, random_word}));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {there.address, 0}));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {16, random_word}));
  BOOST_TEST(!troupe::peer_memory::open(
      c.pid(), {std::numeric_limits<std::uint64_t>::max() - 3, random_word}));
  BOOST_TEST(!troupe::peer_memory::open(0, there));
  BOOST_TEST(!troupe::peer_memory::open(1, there));  // somebody else's
  BOOST_TEST(!troupe::peer_memory::open(std::numeric_limits<std::uint32_t>::max(), there));
}

BOOST_AUTO_TEST_CASE(PE_1_a_word_that_says_zero_is_none) {
  std::uint64_t zero = 0;
  child c;
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), {address_of(&zero), 0}));
  // So no random number makes one that nobody takes, or one that says what a withdrawn one does.
  BOOST_TEST(own_probe(0).where().value != 0u);
}

BOOST_AUTO_TEST_CASE(PE_2_an_address_that_is_not_there_fails_and_the_next_read_is_fine) {
  if (!can_read()) return;
  own_probe word(random_word);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto* two = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  BOOST_REQUIRE(two != MAP_FAILED);
  child c({[&] { ::munmap(two + page, page); }});
  const auto m = troupe::peer_memory::open(c.pid(), word.where());
  BOOST_REQUIRE(m.has_value());
  c.do_next();
  std::vector<std::byte> to(2 * page);
  for (const auto bad : {std::uint64_t{0}, std::uint64_t{16},
                         std::numeric_limits<std::uint64_t>::max() - 100, std::uint64_t{1} << 63})
    BOOST_TEST(!m->read(to, bad));
  BOOST_TEST(!m->read(to, address_of(two)));  // its second half is not there
  BOOST_TEST(m->read(std::span(to).first(page), address_of(two)));
  ::munmap(two, 2 * page);
}

BOOST_AUTO_TEST_CASE(PE_3_what_is_read_after_the_word_was_withdrawn_is_not_taken) {
  if (!can_read()) return;
  own_probe word(random_word);
  const auto there = word.where();
  auto payload = some_bytes(100'000);
  // As a sender does: the word first, then the memory is somebody else's.
  child c({[&] { word.withdraw(); }, [&] { std::ranges::fill(payload, std::byte{0}); }});
  const auto m = troupe::peer_memory::open(c.pid(), there);
  BOOST_REQUIRE(m.has_value());
  std::vector<std::byte> to(payload.size());
  BOOST_TEST(m->read(to, address_of(payload.data())));
  BOOST_TEST((to == payload));
  c.do_next();
  BOOST_TEST(!m->read(to, address_of(payload.data())));
  c.do_next();
  BOOST_TEST(!m->read(to, address_of(payload.data())));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), there));
}

BOOST_AUTO_TEST_CASE(PE_3_a_word_is_withdrawn_at_its_end_and_when_another_takes_its_place) {
  if (!can_read()) return;
  std::optional<own_probe> one(std::in_place, random_word), two(std::in_place, random_word);
  const auto first = one->where(), second = two->where();
  own_probe moved;
  child c({[&] { one.reset(); },
           [&] {
             moved = std::move(*two);
             two.reset();
           },
           [&] { moved = own_probe(7); }});
  const auto a = troupe::peer_memory::open(c.pid(), first),
             b = troupe::peer_memory::open(c.pid(), second);
  BOOST_REQUIRE((a && b));
  c.do_next();
  BOOST_TEST(!a->read({}, 0));
  c.do_next();
  BOOST_TEST(b->read({}, 0));  // it goes with the word, not with who has it
  c.do_next();
  BOOST_TEST(!b->read({}, 0));
  BOOST_TEST(own_probe().where().address == 0u);
  two->withdraw();
  BOOST_TEST(two->where().address == 0u);
  BOOST_TEST(!*two);
}

BOOST_AUTO_TEST_CASE(PE_2_a_process_that_has_ended_is_not_read) {
  if (!can_read()) return;
  own_probe word(random_word);
  const auto mine = some_bytes(20'000);  // before the fork: else it is not the child's too
  child c;
  const auto m = troupe::peer_memory::open(c.pid(), word.where());
  BOOST_REQUIRE(m.has_value());
  std::vector<std::byte> to(mine.size());
  BOOST_TEST(m->read(to, address_of(mine.data())));
  c.end();
  BOOST_TEST(!m->read(to, address_of(mine.data())));
  BOOST_TEST(!troupe::peer_memory::open(c.pid(), word.where()));
}

BOOST_AUTO_TEST_CASE(the_three_ways_have_names) {
  BOOST_TEST((parse_direct_reads("auto") == direct_reads::automatic));
  BOOST_TEST((parse_direct_reads("on") == direct_reads::on));
  BOOST_TEST((parse_direct_reads("off") == direct_reads::off));
  BOOST_TEST(!parse_direct_reads(""));
  BOOST_TEST(!parse_direct_reads("yes"));
}

BOOST_AUTO_TEST_SUITE_END()
