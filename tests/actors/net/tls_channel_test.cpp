#include "troupe/actors/net/tls_channel.hpp"

#include "tests/support/certificates.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

using bytes = std::vector<std::byte>;
using context_ptr = std::shared_ptr<const tls_context>;
using status = tls_channel::status;

const secret the_token("0123456789abcdef0123456789abcdef");

context_ptr by_token(const secret& token = the_token, const std::string& cluster = "lab") {
  return *tls_context::of_token(cluster, token);
}

context_ptr by_files(const wire_protection& files) {
  auto made = tls_context::of_files(files);
  BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message()));
  return *made;
}

bytes some_bytes(std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  bytes out(n);
  for (auto& b : out) b = static_cast<std::byte>(random());
  return out;
}

// Gives the bytes of the wire to `ch` in pieces, and appends what they say.
void give(tls_channel& ch, std::span<const std::byte> wire, bytes& said, std::mt19937* random) {
  const auto read = [&] {
    bytes room(random != nullptr ? 1 + (*random)() % 40'000 : 40'000);
    for (std::size_t n = 0; (n = ch.read(room)) > 0;)
      said.insert(said.end(), room.begin(), room.begin() + static_cast<long>(n));
  };
  while (!wire.empty() && ch.state() != status::failed) {
    const auto space = ch.wire_space();
    auto n = std::min(wire.size(), space.size());
    if (random != nullptr) n = 1 + (*random)() % n;
    std::ranges::copy(wire.first(n), space.begin());
    ch.wire_filled(n);
    wire = wire.subspan(n);
    read();
  }
}

bytes take(tls_channel& ch) {
  const auto w = ch.to_wire();
  bytes out(w.begin(), w.end());
  ch.written(out.size());
  return out;
}

using tamper_fn = std::function<void(bytes& wire, bool to_acceptor)>;

// Two ends, and what each has said to the other.
struct joined {
  explicit joined(const context_ptr& from, const context_ptr& to = nullptr,
                  std::uint64_t rekey = tls_channel::rekey_records_default)
      : a(from, tls_role::initiator, rekey), b(to ? to : from, tls_role::acceptor, rekey) {
    a.start();
  }
  // Until nothing moves.
  void run(std::mt19937* random = nullptr, const tamper_fn& tamper = {}) {
    for (bool moves = true; moves;) {
      auto forth = take(a), back = take(b);
      moves = !forth.empty() || !back.empty();
      if (tamper && !forth.empty()) tamper(forth, true);
      if (tamper && !back.empty()) tamper(back, false);
      give(b, forth, at_b, random);
      give(a, back, at_a, random);
    }
  }
  bool are_open() const { return a.is_open() && b.is_open(); }

  tls_channel a, b;
  bytes at_a, at_b;
};

// Where the records of these bytes begin, and the end.
std::vector<std::size_t> records_of(std::span<const std::byte> wire) {
  std::vector<std::size_t> out{0};
  while (out.back() + 5 <= wire.size()) {
    const auto at = out.back();
    out.push_back(at + 5 + (std::to_integer<std::size_t>(wire[at + 3]) << 8) +
                  std::to_integer<std::size_t>(wire[at + 4]));
  }
  return out;
}

enum class change { flip, drop, repeat, swap, truncate, insert };
constexpr change changes[] = {change::flip, change::drop,     change::repeat,
                              change::swap, change::truncate, change::insert};

// Changes record `which`, if it is there; gives whether.
bool change_record(bytes& wire, std::size_t which, change how, std::mt19937& random) {
  const auto at = records_of(wire);
  if (which + 1 >= at.size()) return false;
  const auto begin = wire.begin() + static_cast<long>(at[which]);
  const auto end = wire.begin() + static_cast<long>(at[which + 1]);
  const bytes one(begin, end);
  switch (how) {
    case change::flip:
      *(begin + 5 + static_cast<long>(random() % (one.size() - 5))) ^=
          static_cast<std::byte>(1u << random() % 8);
      return true;
    case change::drop: wire.erase(begin, end); return true;
    case change::repeat: wire.insert(end, one.begin(), one.end()); return true;
    case change::swap:
      if (which + 2 >= at.size()) return false;
      std::rotate(begin, end, wire.begin() + static_cast<long>(at[which + 2]));
      return true;
    case change::truncate: wire.resize(at[which] + 1 + random() % (one.size() - 1)); return true;
    case change::insert: {
      bytes forged = some_bytes(one.size(), static_cast<unsigned>(random()));
      std::copy_n(one.begin(), 5, forged.begin());
      wire.insert(begin, forged.begin(), forged.end());
      return true;
    }
  }
  return false;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct folder_of_files {
  folder_of_files() {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-tls-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
    ca.emplace(path, "ca");
  }
  ~folder_of_files() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
  std::optional<certificate_authority> ca;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(tls_channel)

BOOST_AUTO_TEST_CASE(TLS_1_what_is_said_arrives_however_the_bytes_are_split) {
  const folder_of_files f;
  for (const auto& context : {by_token(), by_files(f.ca->issue("node"))})
    for (unsigned seed = 0; seed < 10; ++seed) {
      BOOST_TEST_CONTEXT("seed " << seed) {
        std::mt19937 random(seed);
        joined j(context);
        j.run(&random);
        BOOST_REQUIRE_MESSAGE(j.are_open(), j.a.reason() << " / " << j.b.reason());
        if (seed % 2 == 0) j.a.allow_large_reads();
        bytes forth, back;
        for (int i = 0; i < 20; ++i) {
          const auto one = some_bytes(random() % 100'000, static_cast<unsigned>(random()));
          auto& said = i % 2 == 0 ? forth : back;
          said.insert(said.end(), one.begin(), one.end());
          (i % 2 == 0 ? j.a : j.b).send(one);
          if (random() % 2 == 0) j.run(&random);
        }
        j.a.flush();
        j.b.flush();
        j.run(&random);
        BOOST_TEST((j.at_b == forth));
        BOOST_TEST((j.at_a == back));
        j.a.close();
        j.run(&random);
        BOOST_TEST((j.b.state() == status::closed));
      }
    }
}

BOOST_AUTO_TEST_CASE(the_binding_is_equal_at_both_ends_and_another_for_each_connection) {
  joined one(by_token()), other(by_token());
  one.run();
  other.run();
  BOOST_TEST((one.a.binding() == one.b.binding()));
  BOOST_TEST((one.a.binding() != other.a.binding()));
}

BOOST_AUTO_TEST_CASE(nothing_that_is_said_can_be_read_on_the_wire) {
  joined j(by_token());
  bytes wire;
  const tamper_fn look = [&](bytes& w, bool) { wire.insert(wire.end(), w.begin(), w.end()); };
  j.run(nullptr, look);
  const std::string_view words = "these words are nobody else's";
  j.a.send(std::as_bytes(std::span(words.data(), words.size())));
  j.a.flush();
  j.run(nullptr, look);
  BOOST_TEST(j.at_b.size() == words.size());
  const std::string seen(reinterpret_cast<const char*>(wire.data()), wire.size());
  BOOST_TEST(!has(seen, "words"));
  BOOST_TEST(!has(seen, the_token.text()));
}

BOOST_AUTO_TEST_CASE(TLS_5_keys_change_as_records_go_by_large_and_small) {
  for (const std::size_t size : {std::size_t{100}, troupe::tls_channel::record_bytes}) {
    joined j(by_token(), nullptr, 3);
    j.run();
    const auto said = some_bytes(50 * size);
    for (std::size_t i = 0; i < 50; ++i)
      for (auto* end : {&j.a, &j.b}) {
        end->send(std::span(said).subspan(i * size, size));
        end->flush();
      }
    j.run();
    BOOST_TEST((j.at_a == said));
    BOOST_TEST((j.at_b == said));
    BOOST_TEST(j.a.key_changes() == 16u);
    BOOST_TEST(j.b.key_changes() == 16u);
  }
}

BOOST_AUTO_TEST_CASE(TLS_3_another_token_is_refused_and_the_acceptor_may_say_so) {
  joined j(by_token(), by_token("another token of the same length"));
  j.run();
  BOOST_TEST((j.b.state() == status::failed));
  BOOST_TEST((j.b.why() == refusal::wrong_token));
  BOOST_TEST(j.b.reason() ==
             "wrong token for cluster 'lab': use the same --token-file on all of its nodes (or the "
             "first message was changed on the way)");
  BOOST_TEST(!j.b.has_answered());
  BOOST_TEST((j.a.state() == status::handshaking));
}

BOOST_AUTO_TEST_CASE(another_cluster_is_refused) {
  joined j(by_token(), by_token(the_token, "other"));
  j.run();
  BOOST_TEST((j.b.why() == refusal::wrong_cluster));
  BOOST_TEST(has(j.b.reason(), "give both the same --cluster"));
  BOOST_TEST(!j.a.is_open());
}

BOOST_AUTO_TEST_CASE(certificates_here_and_a_token_there_are_refused_either_way) {
  const folder_of_files f;
  const auto files = by_files(f.ca->issue("node"));
  for (const bool is_token_first : {true, false}) {
    joined j(is_token_first ? by_token() : files, is_token_first ? files : by_token());
    j.run();
    BOOST_TEST((j.b.state() == status::failed));
    BOOST_TEST((j.b.why() == refusal::protection));
    BOOST_TEST(has(j.b.reason(), "give --tls-certificate, --tls-key and --tls-ca to both"));
    BOOST_TEST(!j.b.has_answered());
    BOOST_TEST(!j.a.is_open());
  }
}

BOOST_AUTO_TEST_CASE(TLS_2_certificates_that_are_not_good_are_refused_at_both_ends) {
  const folder_of_files f;
  const certificate_authority stranger(f.path, "stranger");
  const auto good = by_files(f.ca->issue("good"));
  const std::tuple<wire_protection, const char*, const char*> bad[] = {
      {f.ca->issue("old", -7200, -3600), "has expired", "has expired: make a new one"},
      {f.ca->issue("young", 3600, 7200), "not yet valid", "bad certificate"},
      {f.ca->self_signed("self"), "has not signed it", "has to have signed it"},
      {stranger.issue("other", -3600, 3600, f.ca->file()), "has not signed it",
       "has to have signed it"},
  };
  for (const auto& [files, here, there] : bad) {
    BOOST_TEST_CONTEXT(files.certificate) {
      // In place of the initiator.
      joined first(by_files(files), good);
      first.run();
      BOOST_TEST((first.b.state() == status::failed));
      BOOST_TEST(has(first.b.reason(), here), first.b.reason());
      BOOST_TEST(has(first.b.reason(), "/CN="), first.b.reason());
      BOOST_TEST((first.a.state() == status::failed));  // it was open, and nothing came over it
      BOOST_TEST(has(first.a.reason(), there), first.a.reason());
      BOOST_TEST(first.at_a.empty());
      // In place of the acceptor.
      joined second(good, by_files(files));
      second.run();
      BOOST_TEST((second.a.state() == status::failed));
      BOOST_TEST(has(second.a.reason(), here), second.a.reason());
      BOOST_TEST((second.b.state() == status::failed));
      BOOST_TEST(has(second.b.reason(), there), second.b.reason());
    }
  }
  // One end trusts another CA: it says so, and the other one learns it.
  joined j(good, by_files(f.ca->issue("mistaken", -3600, 3600, stranger.file())));
  j.run();
  BOOST_TEST(has(j.b.reason(), "has not signed it"), j.b.reason());
  BOOST_TEST(has(j.a.reason(), "does not trust this process's certificate"), j.a.reason());
}

BOOST_AUTO_TEST_CASE(TLS_1_no_change_of_a_record_after_the_handshake_is_taken) {
  constexpr std::size_t records = 6, size = 1000;
  const auto said = some_bytes(records * size);
  for (const auto how : changes)
    for (std::size_t which = 0; which < records; ++which)
      for (unsigned seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        joined j(by_token());
        j.run();
        BOOST_REQUIRE_MESSAGE(j.are_open(), j.a.reason() << " / " << j.b.reason());
        for (std::size_t i = 0; i < records; ++i) {
          j.a.send(std::span(said).subspan(i * size, size));
          j.a.flush();
        }
        auto wire = take(j.a);
        BOOST_REQUIRE(records_of(wire).size() == records + 1);
        if (!change_record(wire, which, how, random)) continue;
        give(j.b, wire, j.at_b, &random);
        // Of what was repeated the first is genuine.
        const auto whole = which + (how == change::repeat ? 1 : 0);
        BOOST_TEST((j.at_b == bytes(said.begin(), said.begin() + static_cast<long>(whole * size))));
        // What ends too early, or lacks its last record, is not known to be wrong yet.
        if (how == change::truncate || (how == change::drop && which + 1 == records)) {
          BOOST_TEST(j.b.is_open());
          continue;
        }
        BOOST_TEST((j.b.state() == status::failed));
        BOOST_TEST(has(j.b.reason(), "changed, left out or put in on the way"), j.b.reason());
        // Who sent it learns that, and neither takes any more.
        j.run();
        BOOST_TEST((j.a.state() == status::failed));
        BOOST_TEST(has(j.a.reason(), "changed on the way"), j.a.reason());
        give(j.b, wire, j.at_b, nullptr);
        BOOST_TEST(j.at_b.size() == whole * size);
      }
}

BOOST_AUTO_TEST_CASE(TLS_2_no_change_of_a_record_of_the_handshake_is_taken) {
  const folder_of_files f;
  for (const auto& context : {by_token(), by_files(f.ca->issue("node"))})
    for (const auto how : changes)
      for (const bool to_acceptor : {true, false})
        for (std::size_t which = 0; which < 8; ++which)
          for (unsigned seed = 0; seed < 4; ++seed) {
            std::mt19937 random(seed);
            joined j(context);
            std::size_t passed = 0;
            bool is_changed = false;
            j.run(&random, [&](bytes& wire, bool is_forth) {
              if (is_forth != to_acceptor || is_changed) return;
              const auto count = records_of(wire).size() - 1;
              if (which >= passed && which < passed + count)
                is_changed = change_record(wire, which - passed, how, random);
              passed += count;
            });
            if (!is_changed) continue;
            // The end that got the change never goes on; of a repeated last one, it may have.
            const auto& victim = to_acceptor ? j.b : j.a;
            if (how != change::repeat) BOOST_TEST(!victim.is_open());
            BOOST_TEST(j.at_a.empty());
            BOOST_TEST(j.at_b.empty());
            if (victim.state() == status::failed) BOOST_TEST(!victim.reason().empty());
          }
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_TLS_end_it) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    troupe::tls_channel b(by_token(), tls_role::acceptor);
    bytes said;
    std::mt19937 random(seed);
    give(b, some_bytes(20'000, seed), said, &random);
    BOOST_TEST((b.state() == status::failed));
    BOOST_TEST((b.why() == refusal::protection));
    BOOST_TEST(!b.has_answered());
    BOOST_TEST(said.empty());
  }
}

BOOST_AUTO_TEST_CASE(files_that_are_of_no_use_are_named_with_their_flag) {
  const folder_of_files f;
  const auto good = f.ca->issue("good");
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(f.path + "/" + name) << text;
    ::chmod((f.path + "/" + name).c_str(), 0600);
    return f.path + "/" + name;
  };
  const auto says = [](const wire_protection& files, error_code code, std::string_view words) {
    const auto made = make_protection(files, "lab", the_token);
    BOOST_REQUIRE(!made);
    BOOST_TEST((made.error().code() == code), made.error().message());
    BOOST_TEST(has(made.error().message(), words), made.error().message());
  };
  auto o = good;
  o.key.clear();
  says(o, error_code::usage, "--tls-key is missing");
  o = good;
  o.certificate = f.path + "/none";
  says(o, error_code::usage, "--tls-certificate " + f.path + "/none: No such file");
  o = good;
  o.ca = f.path;
  says(o, error_code::usage, "is not a file");
  o = good;
  o.certificate = write("text", "no certificate\n");
  says(o, error_code::usage, "/text: is no certificate in PEM format");
  o = good;
  o.ca = write("text2", "no certificate\n");
  says(o, error_code::usage, "--tls-ca " + f.path + "/text2: is no certificate of a CA");
  o = good;
  o.key = write("text3", "no key\n");
  says(o, error_code::usage, "/text3: is no private key (without a passphrase)");
  o = good;
  o.key = f.ca->issue("another").key;
  says(o, error_code::usage, "is not the key of the certificate " + good.certificate);
  o = good;
  ::chmod(o.key.c_str(), 0644);
  says(o, error_code::denied, "run: chmod 600 " + o.key);
  says(f.ca->issue("old", -7200, -3600), error_code::denied, "has expired");
  says(f.ca->self_signed("self"), error_code::denied, "has not signed it");
  o = {};
  o.insecure = o.tls = true;
  says(o, error_code::usage, "--insecure and --tls exclude each other");
  o = {};
  o.tls = true;
  BOOST_TEST(has(make_protection(o, "lab", {}).error().message(), "--token-file"));
}

BOOST_AUTO_TEST_CASE(what_is_protected_follows_from_the_flags_and_the_addresses) {
  const address loopback{"127.0.0.1", 1}, loopback6{"::1", 1}, away{"10.0.0.4", 1};
  const auto plain = *make_protection({}, "lab", the_token);
  BOOST_TEST(!plain.covers(loopback, loopback));
  BOOST_TEST(!plain.covers(loopback6, loopback6));
  BOOST_TEST(plain.covers(away, away));
  BOOST_TEST(plain.covers(away, loopback));
  BOOST_TEST(plain.covers(loopback, away));
  wire_protection o;
  o.tls = true;
  BOOST_TEST(make_protection(o, "lab", the_token)->covers(loopback, loopback));
  o.tls = false, o.insecure = true;
  BOOST_TEST(!make_protection(o, "lab", the_token)->covers(away, away));
  const folder_of_files f;
  BOOST_TEST(make_protection(f.ca->issue("node"), "lab", {})->covers(loopback, loopback));
  BOOST_TEST(!make_protection({}, "lab", {})->covers(away, away));
}

BOOST_AUTO_TEST_SUITE_END()
