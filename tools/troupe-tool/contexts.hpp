#pragma once
// Clusters that a person asks often, by name: where they are and how they are reached. They stand
// in a file of this user, which `troupe context` reads and writes.
//
// CX-1  What a flag says counts, and then the context of --context alone. Without one: then the
//       environment (TROUPE_CLUSTER, TROUPE_JOIN with commas, TROUPE_TOKEN_FILE), of which a flag
//       --join leaves no address, and a flag --cluster without --join neither address nor token;
//       then the context of TROUPE_CONTEXT, else the current one, but as a whole: not where a flag
//       or the environment says a cluster or an address, nor with --system.
// CX-2  parse(to_json(x)) == x. A file that is no such JSON is a usage error that names it; unknown
//       keys are an error too: they may be a mistyped protection.
// CX-3  The file is replaced as a whole, and only its user can read it. Two that change it at the
//       same time do so one after the other.

#include "troupe/runtime/wire/wire_protection.hpp"
#include "troupe/schema/error.hpp"

#include <functional>
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
// Reads the file, changes what is in it, and writes it: CX-3. Makes the folder. Errors name the
// file; one of `change` leaves it as it is.
using change_of_contexts = std::function<result<void>(contexts&)>;
result<contexts> change_contexts(const std::string& file, const change_of_contexts& change);
// What cannot be asked is a usage error: a bad address, protection that excludes itself.
result<void> check_place(const cluster_place& p);

// CX-1. `named`: what --context says. The name of the context that was used is put into `used`.
// Unknown contexts are not_found errors.
result<cluster_place> resolve_place(const cluster_place& flags, const std::string& named,
                                    const surroundings& around, std::string& used);

}  // namespace troupe
