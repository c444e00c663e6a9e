// Libraries of ops that come out of files, and what is said of a file that has none.

#include "troupe/actors/process/load_library.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/loaded_libraries.hpp"
#include "troupe/actors/session/session.hpp"

#include <boost/test/unit_test.hpp>

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;
using test::loaded_library;
using test::temporary_folder;
namespace fs = std::filesystem;

namespace {

struct tables {
  op_table ops;
  kernel_table kernels;
  std::string refusal(const std::string& file, error_code code = error_code::usage) {
    const auto done = load_ops(ops, kernels, file);
    if (done) return "";
    BOOST_TEST((done.error().code() == code));
    BOOST_TEST(done.error().message().starts_with("op library " + file + ": "),
               done.error().message());
    return done.error().message().substr(("op library " + file + ": ").size());
  }
};

// What `change` makes of a library that is whole.
template <class Change>
std::string changed(const temporary_folder& folder, const std::string& name, Change change) {
  auto bytes = test::read_file(loaded_library("nothing"));
  BOOST_TEST_REQUIRE(bytes.size() > sizeof(Elf64_Ehdr));
  change(bytes);
  test::write_file(folder.file(name), bytes);
  return folder.file(name);
}
Elf64_Ehdr header_of(const std::vector<std::byte>& bytes) {
  Elf64_Ehdr h;
  std::memcpy(&h, bytes.data(), sizeof h);
  return h;
}
// Up to where the loader maps.
std::size_t mapped(const std::vector<std::byte>& bytes) {
  const auto h = header_of(bytes);
  std::size_t end = 0;
  for (std::size_t i = 0; i < h.e_phnum; ++i) {
    Elf64_Phdr p;
    std::memcpy(&p, bytes.data() + h.e_phoff + i * sizeof p, sizeof p);
    if (p.p_type == PT_LOAD) end = std::max(end, std::size_t(p.p_offset + p.p_filesz));
  }
  return end;
}
void put_header(std::vector<std::byte>& bytes, const Elf64_Ehdr& h) {
  std::memcpy(bytes.data(), &h, sizeof h);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(load_library)

BOOST_FIXTURE_TEST_CASE(ops_of_a_file_are_added, tables) {
  BOOST_TEST(refusal(loaded_library("ops")) == "");
  BOOST_TEST((ops.find("loaded_op") != nullptr));
  BOOST_TEST((kernels.find("loaded_op") != nullptr));
  // A session has them, too.
  auto s = session::open({.load = {loaded_library("ops")}});
  BOOST_REQUIRE_MESSAGE(s, (s ? "" : s.error().text()));
  BOOST_TEST(((*s)->ops().find("loaded_op") != nullptr));
  const auto none = session::open({.load = {loaded_library("throws")}});
  BOOST_REQUIRE(!none);
  BOOST_TEST(none.error().message().find("threw an exception") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_file_of_stages_alone_has_no_ops, tables) {
  BOOST_TEST(refusal(loaded_library("stages")) == "");
  BOOST_TEST((ops.find("loaded_op") == nullptr));
}

BOOST_FIXTURE_TEST_CASE(a_file_without_a_library_is_refused_with_its_name_and_why, tables) {
  BOOST_TEST(refusal(loaded_library("nothing")) ==
             "it has no troupe_op_library(): it is not a library of ops, or TROUPE_OP_LIBRARY is "
             "missing (of stages: TROUPE_STAGE_LIBRARY)");
  BOOST_TEST(refusal(loaded_library("throws")) == "troupe_op_library() threw an exception");
  BOOST_TEST(refusal(loaded_library("null")) == "troupe_op_library() returned a null pointer");
}

BOOST_FIXTURE_TEST_CASE(a_path_that_leads_to_no_file_is_refused, tables) {
  const temporary_folder folder;
  BOOST_TEST(refusal(folder.file("none.so"), error_code::not_found) == "there is no such file");
  BOOST_TEST(refusal(folder.path()) == "it is not a regular file");
}

BOOST_FIXTURE_TEST_CASE(what_the_loader_cannot_read_is_told_in_its_words, tables) {
  const temporary_folder folder;
  test::write_file(folder.file("text.so"), std::as_bytes(std::span("no library, a text")));
  const auto text = refusal(folder.file("text.so"));
  BOOST_TEST(text.starts_with("it cannot be loaded: "), text);
  BOOST_TEST(text.find("text.so") == std::string::npos, text);  // it stands in front already
  // Too short for a header, of another machine, and with parts of another size.
  const auto cut = changed(folder, "cut.so", [](auto& bytes) { bytes.resize(10); });
  BOOST_TEST(refusal(cut).starts_with("it cannot be loaded: "));
  const auto narrow =
      changed(folder, "narrow.so", [](auto& bytes) { bytes[EI_CLASS] = std::byte{ELFCLASS32}; });
  BOOST_TEST(refusal(narrow).starts_with("it cannot be loaded: "));
  const auto odd = changed(folder, "odd.so", [](auto& bytes) {
    auto h = header_of(bytes);
    h.e_phentsize = 3;
    put_header(bytes, h);
  });
  BOOST_TEST(refusal(odd).starts_with("it cannot be loaded: "));
}

BOOST_FIXTURE_TEST_CASE(a_library_that_was_cut_off_is_refused_before_it_is_mapped, tables) {
  const temporary_folder folder;
  constexpr std::string_view missing = "it cannot be loaded: a part of the file is missing";
  // A signal would end this process otherwise.
  BOOST_TEST(refusal(changed(folder, "part.so",
                             [](auto& bytes) { bytes.resize(mapped(bytes) - 1); })) == missing);
  BOOST_TEST(refusal(changed(folder, "header.so",
                             [](auto& bytes) { bytes.resize(sizeof(Elf64_Ehdr)); })) == missing);
  BOOST_TEST(refusal(changed(folder, "table.so", [](auto& bytes) {
               auto h = header_of(bytes);
               h.e_phoff = ~std::uint64_t{0} - 8;
               put_header(bytes, h);
             })) == missing);
}

BOOST_FIXTURE_TEST_CASE(a_name_without_a_folder_is_a_file_of_this_one, tables) {
  const temporary_folder folder;
  fs::copy_file(loaded_library("ops"), folder.file("mine.so"));
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  const auto said = refusal("mine.so");
  fs::current_path(before);
  BOOST_TEST(said == "");
  BOOST_TEST((ops.find("loaded_op") != nullptr));
}

BOOST_AUTO_TEST_SUITE_END()
