#pragma once
// What may come next on a command line of `troupe`, for the shell that completes it.
//
// The scripts for shells ask the program itself (`troupe __complete -- WORDS`), so what they offer
// is what it knows: verbs and flags of its grammar, and the names of the cluster that the line so
// far says.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// What `troupe completion SHELL` prints; "": no such shell.
std::string completion_script(std::string_view shell);

struct completion_word {
  std::string word, meaning;
};

// `words`: all after the program's name; the last one is what is typed so far, and may be empty.
// `names`: those of a kind ("nodes", "actors", "jobs", "contexts"), asked for where one may stand;
// the flags of `words` that say where the cluster is are its second argument. Empty: files, or
// nothing.
using names_of_kind = std::function<std::vector<std::string>(std::string_view kind,
                                                             std::span<const std::string> flags)>;
std::vector<completion_word> complete(std::span<const std::string> words,
                                      const names_of_kind& names);

}  // namespace troupe
