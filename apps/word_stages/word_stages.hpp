#pragma once
// The stages of count_words that run on other nodes, too: in a stage library, which the program
// links and nodes load.

#include <troupe/stages.hpp>

#include <cstdint>
#include <string>

// The letters and digits of a line; what is between them parts words. In lower case.
troupe::generator<std::string> words_of(std::string line);

struct word_count {
  std::string word;
  std::uint64_t count = 0;
  static constexpr auto fields =
      troupe::fields<&word_count::word, &word_count::count>("word", "count");
};

struct by_word {
  const std::string& operator()(const std::string& word) const { return word; }
};
// Of one word.
struct word_counter {
  std::uint64_t state = 0;
  void operator()(const std::string&) { ++state; }
  word_count finish(const std::string& word) { return {word, state}; }
  static constexpr auto fields = troupe::fields<&word_counter::state>("state");
};

const troupe::stage_library& word_stages();
