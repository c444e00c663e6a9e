// Watches sensors: each sends frames of samples over TCP; windows of a sensor's samples become
// features, and a window that is too loud an alarm. A frame is its length, the sensor's number and
// its samples (u32, u32, f32 ..., little-endian).
//
//   build/bin/watch_sensors --listen 127.0.0.1:9000 --features features.csv   # until Ctrl-C
//
// The table at the end says how long an item took, from the socket to the alarm.

#include <troupe/net.hpp>
#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

using namespace troupe;

namespace {

struct reading {
  std::uint32_t sensor = 0;
  std::vector<float> samples;
};

result<reading> read_frame(const tcp_frame& f) {
  if (f.bytes.size() < 8 || f.bytes.size() % 4 != 0)
    return error(error_code::failed,
                 fmt::format("{} bytes of {} are no frame of samples", f.bytes.size(), f.peer));
  reading r;
  std::memcpy(&r.sensor, f.bytes.data(), 4);
  r.samples.resize(f.bytes.size() / 4 - 1);
  std::memcpy(r.samples.data(), f.bytes.data() + 4, f.bytes.size() - 4);
  for (const auto x : r.samples)
    if (!std::isfinite(x))
      return error(error_code::failed, fmt::format("sensor {} says what is no number", r.sensor));
  return r;
}

struct features {
  std::uint32_t sensor = 0;
  std::uint64_t window = 0;
  double mean = 0, rms = 0, peak = 0;
  static constexpr auto fields =
      troupe::fields<&features::sensor, &features::window, &features::mean, &features::rms,
                     &features::peak>("sensor", "window", "mean", "rms", "peak");
};

// Of one sensor: half of each window's samples are those of the one before.
struct windows {
  std::size_t size = 256;
  std::vector<float> samples{};
  std::uint64_t made = 0;

  std::vector<features> operator()(const reading& r) {
    samples.insert(samples.end(), r.samples.begin(), r.samples.end());
    std::vector<features> all;
    std::size_t from = 0;
    for (; from + size <= samples.size(); from += size / 2) {
      features f{r.sensor, made++, 0, 0, 0};
      for (std::size_t i = from; i < from + size; ++i) {
        const double x = samples[i];
        f.mean += x / double(size);
        f.rms += x * x / double(size);
        f.peak = std::max(f.peak, std::abs(x));
      }
      f.rms = std::sqrt(f.rms);
      all.push_back(f);
    }
    samples.erase(samples.begin(), samples.begin() + std::ptrdiff_t(from));
    return all;
  }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Watches sensors that send samples over TCP.", "watch_sensors"};
  topology_flags flags;
  flags.topology.name = "watch_sensors";
  std::string listen = "127.0.0.1:9000", features_file, failures_file;
  std::size_t window = 256;
  double limit = 1;
  app.add_option("--listen", listen, "HOST:PORT; port 0 is any that is free")
      ->capture_default_str();
  app.add_option("--window", window, "Samples of a window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--limit", limit, "An alarm where the root of the mean square is above")
      ->capture_default_str();
  app.add_option("--features", features_file,
                 "Write the features of every window to this CSV file");
  app.add_option("--failures", failures_file, "Write what is no frame to this CSV file");
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  const auto fail = [](const error& e) {
    say_error("watch_sensors: " + e.text());
    return static_cast<int>(e.code());
  };
  auto server = tcp_server::open({.listen = listen});
  if (!server) return fail(server.error());

  topology t(flags.options());
  auto lost = dead_letters(t);
  auto frames = tcp_frames(t, *server, {.dead_letters = lost});
  auto readings = map(frames, read_frame, {.on_error = skip(), .dead_letters = lost});
  auto made = unbatch(
      partition_by(readings, [](const reading& r) { return r.sensor; }, windows{.size = window}));
  for_each(filter(made, [limit](const features& f) { return f.rms > limit; }),
           [](const features& f) {
             fmt::print("alarm: sensor {}, window {}: {:.3f}\n", f.sensor, f.window, f.rms);
             std::fflush(stdout);
           },
           {.name = "alarm"});
  if (!features_file.empty()) write_csv(made, features_file);
  if (!failures_file.empty()) write_csv(lost, failures_file);
  say_error(fmt::format("watch_sensors: at {}", server->address()));
  return t.run();
}
