// Counts the words of files, plain or packed: lines are cut into words by several threads, and each
// word has a counter of its own, which sees its word only. The counts are a CSV file, in the order
// of the words.
//
//   build/bin/count_words 'logs/*.txt.gz' counts.csv
//
// The same over nodes of a cluster, which have loaded the stages (apps/word_stages):
//
//   build/bin/count_words --cluster default --on /job:worker 'logs/*.txt.gz' counts.csv
//
// In one process it may be killed, and goes on where it was when it is begun again:
//
//   build/bin/count_words --checkpoint kept --resume 'logs/*.txt.gz' counts.csv

#include "apps/word_stages/word_stages.hpp"

#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

using namespace troupe;

int main(int argc, char** argv) {
  CLI::App app{"Counts the words of files.", "count_words"};
  topology_flags flags;
  flags.topology.name = "count_words";
  std::string pattern, output, on;
  std::uint32_t replicas = 2;
  app.add_option("files", pattern, "A path, with * and ? in its last part; plain, gzip or zstd")
      ->required();
  app.add_option("counts", output, "The CSV file that is made")->required();
  app.add_option("--replicas", replicas, "That cut lines, and that count")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--on", on, "Nodes that cut lines and count: /job:worker, /node:n1, /label:K=V");
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  topology t(flags.options());
  t.use(word_stages());
  auto lines = read_lines(t, pattern);
  auto words = map(lines, words_of, {.name = "cut", .replicas = replicas, .on = on});
  auto counts = partition_by(words, by_word{}, word_counter{},
                             {.name = "count", .replicas = replicas, .on = on});
  // Each replica's words come in their order; all of them together are put in order at the end.
  struct sorter {
    std::map<std::string, std::uint64_t> state;
    void operator()(word_count w) { state[w.word] += w.count; }
    generator<word_count> finish() {
      for (const auto& [word, count] : state) {
        const word_count one{word, count};
        co_yield one;
      }
    }
  };
  write_csv(map(counts, sorter{}), output);
  return t.run();
}
