#pragma once
// Clusters that a person asks often, by name: where they are and how they are reached. They stand
// in a file of this user, which `troupe context` reads and writes.
//
// CX-1  What a flag says counts, then the context of --context, then the environment
//       (TROUPE_CLUSTER, TROUPE_JOIN with commas, TROUPE_TOKEN_FILE), then the context of
//       TROUPE_CONTEXT, then the current one. A context that nobody named on the command line
//       counts only as a whole: where a flag or the environment says a cluster or an address, it
//       is not used, nor where --system says it.
// CX-2  parse(to_json(x)) == x. A file that is no such JSON is a usage error that names it; unknown
//       keys are an error too: they may be a mistyped protection.
// CX-3  The file is replaced as a whole, and only its user can read it.

#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// What a context says, and what flags say.
struct cluster_place {
  std::string cluster;
  std::vector<std::string> join;  // HOST:PORT
  std::string token_file;
  wire_protection protect;

  bool has_address() const noexcept { return !cluster.empty() || !join.empty(); }
};

struct contexts {
  std::string current;  // "": none
  std::map<std::string, cluster_place> places;
};

result<contexts> parse_contexts(std::string_view json);
std::string to_json(const contexts& c);
std::string to_json(const cluster_place& p);

// What is there beside the command line.
struct surroundings {
  contexts known;
  std::string file;         // where contexts are kept
  std::string why_unknown;  // the file cannot be read, or is broken; "": it is fine, or not there
  std::string context;      // TROUPE_CONTEXT
  cluster_place environment;
};

// Reads the environment and the file: $TROUPE_CONTEXTS, else troupe/contexts.json in
// $XDG_CONFIG_HOME, else in ~/.config.
surroundings look_around();
// CX-3. Makes the folder. Errors name the file.
result<void> write_contexts(const std::string& file, const contexts& c);

// CX-1. `named`: what --context says. The name of the context that was used is put into `used`.
// Unknown contexts are not_found errors.
result<cluster_place> resolve_place(const cluster_place& flags, const std::string& named,
                                    const surroundings& around, std::string& used);

}  // namespace troupe
