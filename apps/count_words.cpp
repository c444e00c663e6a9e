// Counts the words of files, plain or packed: lines are cut into words by several threads, and each
// word has a counter of its own, which sees its word only. The counts are a CSV file, in the order
// of the words.
//
//   build/bin/count_words 'logs/*.txt.gz' counts.csv

#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

using namespace troupe;

namespace {

// The letters and digits of a line; what is between them parts words. In lower case.
generator<std::string> words_of(std::string line) {
  std::string word;
  for (const auto c : line + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      co_yield std::exchange(word, {});
    }
  }
}

struct word_count {
  std::string word;
  std::uint64_t count = 0;
  static constexpr auto fields =
      troupe::fields<&word_count::word, &word_count::count>("word", "count");
};

struct counter {
  std::uint64_t state = 0;
  void operator()(const std::string&) { ++state; }
  word_count finish(const std::string& word) { return {word, state}; }
};

std::string itself(const std::string& word) { return word; }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Counts the words of files.", "count_words"};
  topology_flags flags;
  flags.topology.name = "count_words";
  std::string pattern, output;
  std::uint32_t replicas = 2;
  app.add_option("files", pattern, "A path, with * and ? in its last part; plain, gzip or zstd")
      ->required();
  app.add_option("counts", output, "The CSV file that is made")->required();
  app.add_option("--replicas", replicas, "That cut lines, and that count")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  flags.add_topology_flags(app);
  CLI11_PARSE(app, argc, argv);
  if (const auto ok = flags.read_topology_flags(app); !ok) {
    say_error("count_words: " + ok.error().text());
    return 2;
  }
  topology t(flags.options());
  auto lines = read_lines(t, pattern);
  auto words = map(lines, words_of, {.name = "cut", .replicas = replicas});
  auto counts = partition_by(words, itself, counter{}, {.name = "count", .replicas = replicas});
  // Each replica's words come in their order; all of them together are put in order at the end.
  struct sorter {
    std::map<std::string, std::uint64_t> all;
    void operator()(word_count w) { all[w.word] += w.count; }
    generator<word_count> finish() {
      for (const auto& [word, count] : all) {
        const word_count one{word, count};
        co_yield one;
      }
    }
  };
  write_csv(map(counts, sorter{}), output);
  return t.run();
}
