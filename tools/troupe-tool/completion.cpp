#include "tools/troupe-tool/completion.hpp"

#include "tools/troupe-tool/grammar.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view bash_script = R"SH(# bash completion for troupe:
#   troupe completion bash > /etc/bash_completion.d/troupe
_troupe() {
  local reply cut word i words=()
  COMPREPLY=()
  # Bash ends words at ':' and '=', too, and none of ours ends there.
  local separators='[:=]'
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    if ((${#words[@]})) && [[ ($word == $separators* || ${words[-1]} == *$separators) && -z $(_troupe_gap "$i") ]]; then
      words[-1]+="$word"
    else
      words+=("$word")
    fi
  done
  # What stands before the last separator is there already.
  cut="${words[-1]%"${words[-1]##*[:=]}"}"
  while IFS=$'\t' read -r reply _; do
    [[ -n "$reply" ]] && COMPREPLY+=("${reply#"$cut"}")
  done < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2> /dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null
}
# Whether a blank stands before that word of the line.
_troupe_gap() {
  local i rest="$COMP_LINE"
  for ((i = 0; i < $1; ++i)); do
    rest="${rest#*"${COMP_WORDS[i]}"}"
  done
  [[ $rest == [[:space:]]* ]] && echo yes
}
complete -o default -F _troupe troupe
)SH";

constexpr std::string_view zsh_script = R"SH(#compdef troupe
# zsh completion for troupe: troupe completion zsh > "${fpath[1]}/_troupe"
_troupe() {
  local -a offers
  local word meaning
  while IFS=$'\t' read -r word meaning; do
    [[ -n "$word" ]] && offers+=("${word//:/\\:}${meaning:+:$meaning}")
  done < <("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2> /dev/null)
  if (( ${#offers} )); then
    _describe troupe offers
  else
    _files
  fi
}
if [ "$funcstack[1]" = "_troupe" ]; then
  _troupe "$@"
else
  compdef _troupe troupe
fi
)SH";

constexpr std::string_view fish_script = R"SH(# fish completion for troupe:
#   troupe completion fish > ~/.config/fish/completions/troupe.fish
function __troupe_complete
  set -l words (commandline -opc) (commandline -ct)
  command $words[1] __complete -- $words[2..-1] 2> /dev/null
end
complete -c troupe -f -n 'test -n "$(__troupe_complete)"' -a '(__troupe_complete)'
complete -c troupe -F -n 'test -z "$(__troupe_complete)"'
)SH";

// Where a word of a verb may stand: fixed words, or names of some kinds.
struct place_of_word {
  std::vector<std::string> words{};
  std::string names{};  // kinds, with blanks between them
};

// By verb; the second place depends on the word in the first.
std::vector<place_of_word> places_of(std::string_view verb, std::span<const std::string> said) {
  const auto first = said.empty() ? std::string_view() : std::string_view(said[0]);
  const auto is_first = [&](auto... word) { return ((first == word) || ...); };
  if (verb == "list") return {{{"nodes", "actors", "jobs"}}};
  if (verb == "names") return {{{"nodes", "actors", "jobs", "contexts"}}};
  if (verb == "show")
    return {{{"node", "actor", "job"}},
            {{},
             is_first("node")  ? "nodes"
             : is_first("job") ? "jobs"
                               : "actors"}};
  if (verb == "logs") return {{{}, "nodes jobs"}};
  if (verb == "why" || verb == "top") return {{{}, "jobs"}};
  if (verb == "wait")
    return {{{"nodes=", "job=running", "job=done", "job=failed", "job=stopped"}}, {{}, "jobs"}};
  if (verb == "checkpoint")
    return {{{"list", "verify", "make"}}, {{}, is_first("make") ? "jobs" : ""}};
  if (verb == "cluster") return {{{"leave", "forget"}}, {{}, "nodes"}};
  if (verb == "job") return {{{"stop", "finish", "detach"}}, {{}, "jobs"}};
  if (verb == "topology")
    return {{{"show", "pause", "resume", "drain", "replicas", "move"}},
            {{}, "jobs"},
            {},
            {{}, is_first("move") ? "nodes" : ""}};
  if (verb == "context") return {{{"list", "show", "set", "use", "remove"}}, {{}, "contexts"}};
  if (verb == "completion") return {{{"bash", "zsh", "fish"}}};
  return {};
}

// Of a flag that takes a value: the kind of names that it takes, or nothing.
std::string names_of_flag(std::string_view flag) {
  if (flag == "--context") return "contexts";
  if (flag == "--job") return "jobs";
  if (flag == "--node") return "nodes";
  return {};
}

struct line_so_far {
  const CLI::App* verb = nullptr;
  std::vector<std::string> said;         // words of the verb
  std::vector<std::string> where;        // flags that say where the cluster is
  const CLI::Option* waiting = nullptr;  // the last word is its value
};

const CLI::Option* find_flag(const CLI::App& app, const CLI::App* verb, const std::string& name) {
  if (verb != nullptr)
    if (const auto* found = verb->get_option_no_throw(name)) return found;
  return app.get_option_no_throw(name);
}

const CLI::App* find_verb(const CLI::App& app, const std::string& name) {
  for (const auto* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

bool takes_value(const CLI::Option& o) { return o.get_items_expected_max() > 0; }

line_so_far read_line(const CLI::App& app, std::span<const std::string> words) {
  static const std::set<std::string> places = {
      "--context", "--cluster", "--join", "--token-file", "--tls-certificate",
      "--tls-key", "--tls-ca",  "--tls",  "--insecure",   "--system"};
  line_so_far line;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const auto& word = words[i];
    if (word.starts_with("-")) {
      const auto equals = word.find('=');
      const auto name = word.substr(0, equals);
      const auto* flag = find_flag(app, line.verb, name);
      const bool has_next = flag != nullptr && takes_value(*flag) && equals == std::string::npos;
      if (has_next && i + 2 >= words.size()) line.waiting = flag;
      if (places.contains(name) && !(has_next && i + 2 >= words.size())) {
        line.where.push_back(word);
        if (has_next) line.where.push_back(words[i + 1]);
      }
      if (has_next) ++i;
    } else if (line.verb == nullptr) {
      line.verb = find_verb(app, word);
      if (line.verb == nullptr) return line;
    } else {
      line.said.push_back(word);
    }
  }
  return line;
}

void offer_flags(std::vector<completion_word>& out, const CLI::App& app) {
  for (const auto* o : app.get_options())
    for (const auto& name : o->get_lnames()) out.push_back({"--" + name, o->get_description()});
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return std::string(bash_script);
  if (shell == "zsh") return std::string(zsh_script);
  if (shell == "fish") return std::string(fish_script);
  return {};
}

std::vector<completion_word> complete(std::span<const std::string> words,
                                      const names_of_kind& names) {
  if (words.empty()) return {};
  command c;
  grammar_texts t;
  CLI::App app;
  set_grammar(app, c, t);
  const auto& typed = words.back();
  const auto line = read_line(app, words);
  std::vector<completion_word> out;
  const auto offer_names = [&](const std::string& kinds) {
    std::istringstream each(kinds);
    for (std::string kind; each >> kind;)
      for (auto& name : names(kind, line.where)) out.push_back({std::move(name), {}});
  };
  if (line.waiting != nullptr) {
    offer_names(names_of_flag(line.waiting->get_name()));
  } else if (typed.starts_with("-")) {
    if (line.verb != nullptr) offer_flags(out, *line.verb);
    offer_flags(out, app);
  } else if (line.verb == nullptr) {
    for (const auto* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      if (!sub->get_group().empty()) out.push_back({sub->get_name(), sub->get_description()});
  } else {
    const auto places = places_of(line.verb->get_name(), line.said);
    if (line.said.size() < places.size()) {
      const auto& place = places[line.said.size()];
      for (const auto& word : place.words) out.push_back({word, {}});
      offer_names(place.names);
    }
  }
  std::erase_if(out, [&](const auto& o) { return !o.word.starts_with(typed); });
  return out;
}

}  // namespace troupe
