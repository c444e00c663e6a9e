#pragma once
// A look at a cluster as metrics for Prometheus, in its text format 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/
//
// SE-5  Whatever the look has in it, the text is well-formed: each family once, with HELP and TYPE,
//       each series once, label values escaped.
// SE-6  How many series there are follows from nodes, jobs, stages and kinds of actors, and not
// from
//       the number of actors or links; beyond series_max groups of a family are left out and
//       counted.
//
// A job's name stands in the label `job_name`, since `job` is Prometheus' own.
//
// Threading: a pure function.

#include "tools/troupe-tool/serve_look.hpp"

#include <cstddef>
#include <string>

namespace troupe {

inline constexpr std::size_t series_max = 2000;  // of nodes, jobs, stages, and groups

inline constexpr const char* metrics_type = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const cluster_look& look);

}  // namespace troupe
