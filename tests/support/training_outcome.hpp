#pragma once
// What a training told until its end: losses, the hash of its variables, and why it failed or was
// stopped, if it did or was.

#include "tests/support/events.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/safetensors.hpp"

#include <string>
#include <vector>

namespace troupe::test {

struct outcome {
  std::vector<float> losses;
  std::string hash, failure, stopped;
};

inline outcome follow(training& run) {
  outcome out;
  while (auto e = next_event(run)) {
    if (e->type == training_event::kind::loss) out.losses.push_back(e->loss);
    if (e->type == training_event::kind::failed) out.failure = e->text;
    if (e->type == training_event::kind::stopped) out.stopped = e->text;
    if (e->type != training_event::kind::variables) continue;
    std::vector<named_tensor> tensors;
    for (auto& [name, value] : e->variables) tensors.push_back({name, value});
    out.hash = weights_hash(tensors);
  }
  return out;
}

}  // namespace troupe::test
