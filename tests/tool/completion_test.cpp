#include "tools/troupe-tool/completion.hpp"

#include "tools/troupe-tool/grammar.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace troupe;

namespace {

struct offered {
  std::vector<std::string> words;
  std::string asked;               // kinds of names
  std::vector<std::string> flags;  // that say where

  bool has(const std::string& word) const { return std::ranges::find(words, word) != words.end(); }
};

offered offer(const std::vector<std::string>& words) {
  offered o;
  const auto names = [&](std::string_view kind, std::span<const std::string> flags) {
    o.asked += std::string(kind) + " ";
    o.flags.assign(flags.begin(), flags.end());
    return std::vector<std::string>{"first-of-" + std::string(kind), "other"};
  };
  for (auto& word : complete(words, names)) o.words.push_back(std::move(word.word));
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(completion)

BOOST_AUTO_TEST_CASE(verbs_and_flags_are_those_of_the_grammar) {
  BOOST_TEST((offer({"sta"}).words == std::vector<std::string>{"status"}));
  BOOST_TEST(offer({""}).has("why"));
  BOOST_TEST(!offer({""}).has("names"));
  BOOST_TEST(offer({"--js"}).has("--json"));
  BOOST_TEST(offer({"list", "--so"}).has("--sort"));
  BOOST_TEST(!offer({"events", "--so"}).has("--sort"));
  BOOST_TEST(offer({"--json", "list", "--cl"}).has("--cluster"));
  BOOST_TEST(offer({}).words.empty());
  BOOST_TEST(offer({"nothing", ""}).words.size() == offer({""}).words.size());
}

BOOST_AUTO_TEST_CASE(words_of_a_verb_and_names_of_the_cluster_are_offered) {
  BOOST_TEST((offer({"list", "n"}).words == std::vector<std::string>{"nodes"}));
  BOOST_TEST(offer({"why", ""}).asked == "jobs ");
  BOOST_TEST((offer({"why", "fi"}).words == std::vector<std::string>{"first-of-jobs"}));
  BOOST_TEST(offer({"why", "mnist", ""}).words.empty());
  BOOST_TEST(offer({"show", "node", ""}).asked == "nodes ");
  BOOST_TEST(offer({"show", "job", ""}).asked == "jobs ");
  BOOST_TEST(offer({"cluster", "leave", ""}).asked == "nodes ");
  BOOST_TEST(offer({"topology", "move", "shop", "decode", ""}).asked == "nodes ");
  BOOST_TEST(offer({"topology", "replicas", "shop", "decode", ""}).asked == "");
  BOOST_TEST(offer({"wait", "job="}).has("job=done"));
  BOOST_TEST(offer({"completion", "z"}).has("zsh"));
  BOOST_TEST(offer({"status", ""}).words.empty());
}

// A verb that is added to the grammar has its words here, too.
BOOST_AUTO_TEST_CASE(something_is_offered_wherever_a_verb_takes_a_word) {
  command c;
  grammar_texts t;
  CLI::App app;
  set_grammar(app, c, t);
  int verbs = 0;
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const auto positionals =
        verb->get_options([](const CLI::Option* o) { return o->get_positional(); });
    if (positionals.empty() || verb->get_name() == "plan") continue;  // plan: a file
    const auto o = offer({verb->get_name(), ""});
    BOOST_TEST((!o.words.empty() && o.words.size() >= 2U), verb->get_name());
    ++verbs;
  }
  BOOST_TEST(verbs >= 12);
  BOOST_TEST(offer({"logs", ""}).asked == "nodes jobs ");
  BOOST_TEST(offer({"events", "--node", ""}).asked == "nodes ");
}

BOOST_AUTO_TEST_CASE(values_of_flags_are_no_words_and_say_where_the_cluster_is) {
  const auto o = offer({"--cluster", "lab", "why", "--join", "a:1", "--seconds", "3", ""});
  BOOST_TEST(o.asked == "jobs ");
  BOOST_TEST((o.flags == std::vector<std::string>{"--cluster", "lab", "--join", "a:1"}));
  BOOST_TEST(offer({"--context", ""}).asked == "contexts ");
  BOOST_TEST(offer({"timeline", "--job", ""}).asked == "jobs ");
  BOOST_TEST(offer({"--token-file", ""}).words.empty());  // files
  BOOST_TEST(
      (offer({"--context=lab", "why", ""}).flags == std::vector<std::string>{"--context=lab"}));
}

BOOST_AUTO_TEST_CASE(each_shell_has_a_script) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = completion_script(shell);
    BOOST_TEST(script.find("__complete --") != std::string::npos, shell);
    BOOST_TEST(script.starts_with("#"), shell);
  }
  BOOST_TEST(completion_script("csh").empty());
}

BOOST_AUTO_TEST_SUITE_END()
