#include "tools/troupe-tool/contexts.hpp"

#include "tools/troupe-tool/context_answers.hpp"

#include <boost/test/unit_test.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;

namespace {

surroundings around_lab() {
  surroundings s;
  auto& lab = s.known.places["lab"];
  lab.cluster = "l", lab.join = {"h:1", "h:2"}, lab.token_file = "/t", lab.protect.tls = true;
  s.known.places["home"].cluster = "h";
  return s;
}

cluster_place resolve(const cluster_place& flags, const std::string& named, const surroundings& s,
                      const std::string& used_context) {
  std::string used;
  auto place = resolve_place(flags, named, s, used);
  BOOST_TEST_REQUIRE(bool(place));
  BOOST_TEST(used == used_context);
  return *place;
}

struct folder {
  std::filesystem::path path;
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "contexts.XXXXXX").string();
    BOOST_TEST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~folder() { std::filesystem::remove_all(path); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(contexts)

BOOST_AUTO_TEST_CASE(what_was_written_is_read) {
  auto known = around_lab().known;
  known.current = "lab";
  known.places["tls"].join = {"a:1"};
  known.places["tls"].protect = {.certificate = "c", .key = "k", .ca = "a"};
  const auto again = parse_contexts(to_json(known));
  BOOST_TEST_REQUIRE(bool(again));
  BOOST_TEST(to_json(*again) == to_json(known));
  BOOST_TEST(again->places.at("lab").protect.tls);
  BOOST_TEST((again->places.at("lab").join == std::vector<std::string>{"h:1", "h:2"}));
  BOOST_TEST(again->places.at("tls").protect.ca == "a");
}

BOOST_AUTO_TEST_CASE(a_broken_file_is_an_error_that_says_what_is_wrong) {
  for (const auto& [text, part] : {
           std::pair("", "no JSON object"),
           {"[]", "no JSON object"},
           {"{\"current\":1}", "'current'"},
           {"{\"contexts\":[]}", "'contexts'"},
           {"{\"other\":{}}", "'other'"},
           {"{\"contexts\":{\"a\":1}}", "context 'a' is no object"},
           {"{\"contexts\":{\"a\":{\"tsl\":true}}}", "context 'a': there is no key 'tsl'"},
           {"{\"contexts\":{\"a\":{\"tls\":\"yes\"}}}", "true or false"},
           {"{\"contexts\":{\"a\":{\"join\":\"h:1\"}}}", "'join' should be a list"},
           {"{\"contexts\":{\"a\":{\"join\":[1]}}}", "'join' should be a list"},
           {"{\"contexts\":{\"a\":{\"cluster\":1}}}", "'cluster' should be a text"},
       }) {
    const auto known = parse_contexts(text);
    BOOST_TEST_REQUIRE(!known, text);
    BOOST_TEST(known.error().message().find(part) != std::string::npos, known.error().message());
  }
}

BOOST_AUTO_TEST_CASE(flags_count_before_a_named_context_and_that_before_the_environment) {
  auto s = around_lab();
  s.environment.cluster = "e", s.environment.token_file = "/e";
  auto place = resolve({}, "lab", s, "lab");
  BOOST_TEST(place.cluster == "l");
  BOOST_TEST(place.token_file == "/t");
  BOOST_TEST(place.protect.tls);
  cluster_place flags;
  flags.cluster = "f", flags.protect.insecure = true;
  place = resolve(flags, "lab", s, "lab");
  BOOST_TEST(place.cluster == "f");
  BOOST_TEST(place.join.size() == 2U);
  BOOST_TEST(place.protect.insecure);
  BOOST_TEST(!place.protect.tls);
  place = resolve({}, "", s, "");
  BOOST_TEST(place.cluster == "e");
  BOOST_TEST(place.token_file == "/e");
}

BOOST_AUTO_TEST_CASE(a_place_of_the_environment_is_not_mixed_with_that_of_flags) {
  surroundings s;
  s.environment.cluster = "e", s.environment.join = {"e:1"}, s.environment.token_file = "/e";
  cluster_place flags;
  flags.join = {"x:1"};
  auto place = resolve(flags, "", s, "");
  BOOST_TEST(place.cluster == "e");
  BOOST_TEST((place.join == std::vector<std::string>{"x:1"}));
  BOOST_TEST(place.token_file == "/e");
  flags = {};
  flags.cluster = "f";
  place = resolve(flags, "", s, "");
  BOOST_TEST(place.join.empty());
  BOOST_TEST(place.token_file.empty());
  // Beside a context that is named nothing of it counts.
  s.known.places["lab"].join = {"h:1"};
  place = resolve({}, "lab", s, "lab");
  BOOST_TEST(place.cluster.empty());
  BOOST_TEST(place.token_file.empty());
}

BOOST_AUTO_TEST_CASE(the_context_in_use_counts_only_where_nobody_says_a_place) {
  auto s = around_lab();
  s.known.current = "lab";
  BOOST_TEST(resolve({}, "", s, "lab").cluster == "l");
  cluster_place flags;
  flags.join = {"x:1"};
  const auto place = resolve(flags, "", s, "");
  BOOST_TEST(place.cluster.empty());
  BOOST_TEST(place.token_file.empty());  // a token is not shown to another cluster
  s.context = "home";
  BOOST_TEST(resolve({}, "", s, "home").cluster == "h");
  s.environment.cluster = "e";
  BOOST_TEST(resolve({}, "", s, "").cluster == "e");
}

BOOST_AUTO_TEST_CASE(files_of_a_certificate_are_not_mixed_with_others) {
  auto s = around_lab();
  s.known.places["lab"].protect = {.certificate = "c", .key = "k", .ca = "a"};
  cluster_place flags;
  flags.protect.certificate = "mine";
  const auto place = resolve(flags, "lab", s, "lab");
  BOOST_TEST(place.protect.certificate == "mine");
  BOOST_TEST(place.protect.key.empty());
  flags = {};
  flags.protect.insecure = true;
  BOOST_TEST(!resolve(flags, "lab", s, "lab").protect.has_files());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_asked_is_not_kept) {
  const auto refused = [](const cluster_place& p) { return !check_place(p); };
  cluster_place p;
  BOOST_TEST(!refused(p));
  p.join = {"a:1", "dns:pods:7000"};
  BOOST_TEST(!refused(p));
  p.join = {"a"};
  BOOST_TEST(refused(p));
  p.join = {"a:1,b:2"};
  BOOST_TEST(refused(p));
  p = {};
  p.protect.insecure = p.protect.tls = true;
  BOOST_TEST(refused(p));
  p = {};
  p.protect.certificate = "c", p.protect.key = "k";
  BOOST_TEST(refused(p));
  p.protect.ca = "a";
  BOOST_TEST(!refused(p));
}

BOOST_AUTO_TEST_CASE(an_unknown_context_and_a_broken_file_are_errors) {
  auto s = around_lab();
  std::string used;
  auto place = resolve_place({}, "lap", s, used);
  BOOST_TEST_REQUIRE(!place);
  BOOST_TEST(place.error().message().find("did you mean lab?") != std::string::npos);
  s.known.current = "gone";
  BOOST_TEST(!resolve_place({}, "", s, used));
  s.why_unknown = "contexts.json: it is no JSON object";
  BOOST_TEST(!resolve_place({}, "", s, used));
  cluster_place flags;
  flags.cluster = "f";
  BOOST_TEST(bool(resolve_place(flags, "", s, used)));
}

BOOST_AUTO_TEST_CASE(contexts_are_kept_in_a_file_that_only_its_user_reads) {
  const folder f;
  surroundings s;
  s.file = (f.path / "new" / "contexts.json").string();
  const auto run = [&](verb v, const std::string& name, const cluster_place& place) {
    command c;
    c.action = v, c.id = name, c.place = place;
    const auto o = answer_contexts(c, s);
    std::ifstream in(s.file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (auto known = parse_contexts(text)) s.known = *known;
    return o;
  };
  cluster_place place;
  place.join = {"h:1"}, place.token_file = "token";
  BOOST_TEST(run(verb::set_context, "lab", place).exit_code == 0);
  BOOST_TEST(std::filesystem::path(s.known.places.at("lab").token_file).is_absolute());
  struct stat status{};
  BOOST_TEST_REQUIRE(::stat(s.file.c_str(), &status) == 0);
  BOOST_TEST((status.st_mode & 0777) == 0600U);
  BOOST_TEST(s.known.current.empty());
  BOOST_TEST(run(verb::use_context, "lab", {}).exit_code == 0);
  BOOST_TEST(s.known.current == "lab");
  BOOST_TEST(run(verb::use_context, "none", {}).exit_code == 6);
  BOOST_TEST(run(verb::show_context, "", {}).out.find("lab") != std::string::npos);
  BOOST_TEST(run(verb::list_contexts, "", {}).out.find("*") != std::string::npos);
  BOOST_TEST(run(verb::names, "", {}).out == "lab\n");
  BOOST_TEST(run(verb::remove_context, "lab", {}).exit_code == 0);
  BOOST_TEST(s.known.places.empty());
  BOOST_TEST(s.known.current.empty());
  BOOST_TEST(run(verb::set_context, "lab", place).exit_code == 0);
  BOOST_TEST(run(verb::use_context, "lab", {}).exit_code == 0);
  BOOST_TEST(run(verb::use_context, "-", {}).exit_code == 0);
  BOOST_TEST(s.known.current.empty());
  s.file = "/proc/none/contexts.json";
  const auto o = run(verb::set_context, "lab", place);
  BOOST_TEST(o.exit_code == 1);
  BOOST_TEST(o.err.find(s.file) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_no_file_is_not_read_and_a_link_stays_one) {
  const folder f;
  const auto file = (f.path / "contexts.json").string();
  const auto look = [&](const std::string& at) {
    ::setenv("TROUPE_CONTEXTS", at.c_str(), 1);
    auto s = look_around();
    ::unsetenv("TROUPE_CONTEXTS");
    return s;
  };
  BOOST_TEST(look(file).why_unknown.empty());
  BOOST_TEST(look(f.path.string()).why_unknown.find("it is no file") != std::string::npos);
  BOOST_TEST_REQUIRE(::mkfifo((f.path / "pipe").c_str(), 0600) == 0);
  BOOST_TEST(look((f.path / "pipe").string()).why_unknown.find("no file") != std::string::npos);
  std::ofstream(f.path / "real.json") << "{\"current\":\"\",\"contexts\":{}}";
  std::filesystem::create_symlink("real.json", file);
  const auto changed = change_contexts(file, [](auto& c) {
    c.places["lab"].cluster = "l";
    return result<void>();
  });
  BOOST_TEST(bool(changed));
  BOOST_TEST(std::filesystem::is_symlink(file));
  BOOST_TEST(look(file).known.places.contains("lab"));
  // What a change refuses stays as it is.
  BOOST_TEST(!change_contexts(file, [](auto& c) {
    c.places.clear();
    return result<void>(error(error_code::usage, "no"));
  }));
  BOOST_TEST(look(file).known.places.contains("lab"));
}

BOOST_AUTO_TEST_CASE(changes_at_the_same_time_are_all_kept) {  // CX-3
  const folder f;
  const auto file = (f.path / "contexts.json").string();
  constexpr int each = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < each; ++i)
        (void)change_contexts(file, [&](auto& c) {
          c.places[std::to_string(t * each + i)].cluster = "l";
          return result<void>();
        });
    });
  for (auto& thread : threads) thread.join();
  const auto all = change_contexts(file, [](auto&) { return result<void>(); });
  BOOST_TEST_REQUIRE(bool(all));
  BOOST_TEST(all->places.size() == 4U * each);
}

BOOST_AUTO_TEST_SUITE_END()
