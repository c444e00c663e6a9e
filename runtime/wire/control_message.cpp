#include "troupe/runtime/wire/control_message.hpp"

#include "schema/wire.capnp.h"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/runtime/wire/frame.hpp"
#include "troupe/runtime/wire/trace_codec.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace troupe {

namespace {

static_assert(work_word_bytes_max + 1024 < control_header_max);

// Cap'n Proto shows empty data as a null pointer, which a range may have and std::memcpy may not.
std::vector<std::byte> bytes_of(kj::ArrayPtr<const kj::byte> from) {
  const auto first = reinterpret_cast<const std::byte*>(from.begin());
  return {first, first + from.size()};
}

// One growth step is enough for nearly all messages.
std::vector<std::byte> to_bytes(capnp::MessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  return bytes_of(words.asBytes());
}

kj::ArrayPtr<const kj::byte> data_of(const std::vector<std::byte>& from) {
  return {reinterpret_cast<const kj::byte*>(from.data()), from.size()};
}

template <class Text>
std::string text_of(Text t) {
  return std::string(t.begin(), t.size());
}

void write_member(wire::Member::Builder to, const member_info& m) {
  to.setId(raw(m.id));
  to.setStartTimeNs(m.start_time_ns);
  to.setName(m.name.c_str());
  to.setAddress(m.address.c_str());
  to.setHost(m.host.c_str());
  to.setPid(m.pid);
  to.setKind(static_cast<std::uint8_t>(m.kind));
  to.setJob(m.job.c_str());
  to.setStreams(m.streams);
  to.setIncarnation(m.incarnation);
  to.setState(static_cast<std::uint8_t>(m.state));
  to.setReason(m.reason.c_str());
  to.setJobs(m.jobs);
  to.setRevision(m.revision);
  auto libraries = to.initLibraries(static_cast<unsigned>(m.libraries.size()));
  for (unsigned i = 0; i < libraries.size(); ++i) {
    libraries[i].setName(m.libraries[i].name);
    libraries[i].setVersion(m.libraries[i].version);
    libraries[i].setAbi(m.libraries[i].abi);
  }
  to.setLeaseNs(m.lease_ns);
  auto labels = to.initLabels(static_cast<unsigned>(m.labels.size()));
  for (unsigned i = 0; i < labels.size(); ++i) labels.set(i, m.labels[i].c_str());
  auto devices = to.initDevices(static_cast<unsigned>(m.devices.size()));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setHardware(m.devices[i].hardware);
    devices[i].setMemoryBytes(m.devices[i].memory_bytes);
    devices[i].setCount(m.devices[i].count);
  }
}

result<std::vector<device_group>> read_devices(wire::Member::Reader from) {
  std::vector<device_group> out;
  std::uint64_t count = 0;
  if (from.getDevices().size() > devices_max)  // a list claims what it likes for a few bytes
    return error(error_code::usage,
                 fmt::format("member {:x}: {} groups of devices are beyond the limit of {}",
                             from.getId(), from.getDevices().size(), devices_max));
  for (auto d : from.getDevices()) {
    count += d.getCount();
    if (d.getCount() == 0 || count > devices_max)
      return error(
          error_code::usage,
          fmt::format(
              "member {:x}: a group of {} devices, {} with those before: a node has at most {}, a group at least one",
              from.getId(), d.getCount(), count, devices_max));
    if (d.getHardware().size() > hardware_bytes_max)
      return error(error_code::usage,
                   fmt::format("member {:x}: the name of a device is beyond the limit of {} bytes",
                               from.getId(), hardware_bytes_max));
    out.push_back({text_of(d.getHardware()), d.getMemoryBytes(), d.getCount()});
  }
  return out;
}

result<member_info> read_member(wire::Member::Reader from) {
  if (from.getKind() > 2 || from.getState() > 3)
    return error(error_code::usage, fmt::format("member {:x}: kind {} or state {} is unknown",
                                                from.getId(), from.getKind(), from.getState()));
  std::vector<library_id> libraries;
  if (from.getLibraries().size() > libraries_max)
    return error(error_code::usage,
                 fmt::format("member {:x}: {} libraries are beyond the limit of {}", from.getId(),
                             from.getLibraries().size(), libraries_max));
  for (auto l : from.getLibraries()) {
    if (l.getName().size() > library_text_bytes_max ||
        l.getVersion().size() > library_text_bytes_max)
      return error(
          error_code::usage,
          fmt::format(
              "member {:x}: the name or version of a library is beyond the limit of {} bytes",
              from.getId(), library_text_bytes_max));
    libraries.push_back({text_of(l.getName()), text_of(l.getVersion()), l.getAbi()});
  }
  auto devices = read_devices(from);
  if (!devices) return std::move(devices.error());
  if (from.getLeaseNs() != 0 &&
      (from.getLeaseNs() < lease_min_ns || from.getLeaseNs() > lease_max_ns))
    return error(error_code::usage,
                 fmt::format("member {:x}: a lease of {} ns is not from 1 s to 1 h", from.getId(),
                             from.getLeaseNs()));
  std::vector<std::string> labels;
  if (from.getLabels().size() > labels_max)
    return error(error_code::usage, fmt::format("member {:x}: {} labels are beyond the limit of {}",
                                                from.getId(), from.getLabels().size(), labels_max));
  for (auto l : from.getLabels()) {
    if (l.size() > label_bytes_max)
      return error(error_code::usage,
                   fmt::format("member {:x}: a label is beyond the limit of {} bytes", from.getId(),
                               label_bytes_max));
    labels.push_back(text_of(l));
  }
  return member_info{node_id{from.getId()},
                     from.getStartTimeNs(),
                     text_of(from.getName()),
                     text_of(from.getAddress()),
                     text_of(from.getHost()),
                     from.getPid(),
                     static_cast<member_kind>(from.getKind()),
                     text_of(from.getJob()),
                     from.getStreams(),
                     from.getIncarnation(),
                     static_cast<member_state>(from.getState()),
                     text_of(from.getReason()),
                     from.getJobs(),
                     from.getRevision(),
                     std::move(libraries),
                     std::move(*devices),
                     std::move(labels),
                     from.getLeaseNs()};
}

template <class List>
void write_list(List to, const std::vector<std::uint64_t>& from) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}

template <class List>
std::vector<std::uint64_t> read_list(List from) {
  std::vector<std::uint64_t> out;
  for (auto v : from) out.push_back(v);
  return out;
}

void write_reports(capnp::List<wire::ShardReport>::Builder to,
                   const std::vector<shard_report>& from) {
  for (unsigned i = 0; i < to.size(); ++i) {
    const auto& s = from[i];
    to[i].setActor(s.actor);
    write_list(to[i].initReceived(static_cast<unsigned>(s.received.size())), s.received);
    write_list(to[i].initApplied(static_cast<unsigned>(s.applied.size())), s.applied);
    write_list(to[i].initDropped(static_cast<unsigned>(s.dropped.size())), s.dropped);
    write_list(to[i].initDuplicates(static_cast<unsigned>(s.duplicates.size())), s.duplicates);
  }
}

std::vector<shard_report> read_reports(capnp::List<wire::ShardReport>::Reader from) {
  std::vector<shard_report> out;
  for (auto s : from)
    out.push_back({s.getActor(), read_list(s.getReceived()), read_list(s.getApplied()),
                   read_list(s.getDropped()), read_list(s.getDuplicates())});
  return out;
}

struct writer {
  wire::Control::Builder to;

  void operator()(const heartbeat& m) { to.setHeartbeat(m.count); }
  void operator()(const view_update& m) {
    auto list = to.initView(static_cast<unsigned>(m.members.size()));
    for (unsigned i = 0; i < list.size(); ++i) write_member(list[i], m.members[i]);
  }
  void operator()(const leave& m) { to.setLeave(m.reason.c_str()); }
  void operator()(const credit_batch& m) {
    auto list = to.initCredits(static_cast<unsigned>(m.credits.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setJob(raw(m.credits[i].job));
      list[i].setEpoch(m.credits[i].epoch);
      list[i].setEdge(m.credits[i].edge);
      list[i].setCount(m.credits[i].count);
    }
  }
  void operator()(const place_part& m) {
    auto p = to.initPlace();
    p.setJob(raw(m.job));
    p.setEpoch(m.epoch);
    p.setPlan(data_of(m.plan));
    auto nodes = p.initNodes(static_cast<unsigned>(m.nodes.size()));
    for (unsigned i = 0; i < nodes.size(); ++i) nodes.set(i, raw(m.nodes[i]));
    p.setCheckpoints(m.checkpoints);
    p.setRestoreFrom(m.restore_from);
    p.setMayMove(m.may_move);
    p.setPlanLow(m.plan_id.low);
    p.setPlanHigh(m.plan_id.high);
    p.setPlanSize(m.plan_id.bytes);
  }
  void operator()(const want_blob& m) {
    auto w = to.initWantBlob();
    w.setJob(raw(m.job));
    put_id(w, m.id);
    w.setOffset(m.offset);
  }
  void operator()(const blob_piece& m) {
    auto p = to.initBlobPiece();
    p.setJob(raw(m.job));
    put_id(p, m.id);
    p.setOffset(m.offset);
    p.setBytes(data_of(m.bytes));
    p.setError(m.error.c_str());
  }
  template <class Group>
  static void put_id(Group& g, const blob_id& id) {
    g.setLow(id.low);
    g.setHigh(id.high);
    g.setSize(id.bytes);
  }
  void operator()(const part_placed& m) {
    auto p = to.initPlaced();
    p.setJob(raw(m.job));
    p.setEpoch(m.epoch);
    p.setError(m.error.c_str());
    p.setUnlinked(raw(m.unlinked));
    auto data = p.initData(static_cast<unsigned>(m.data.size()));
    for (unsigned i = 0; i < data.size(); ++i) {
      data[i].setWhat(m.data[i].what);
      data[i].setHash(m.data[i].hash);
    }
  }
  void operator()(const start_part& m) { to.setStart(raw(m.job)); }
  void operator()(const stop_part& m) {
    auto p = to.initStop();
    p.setJob(raw(m.job));
    p.setReason(m.reason.c_str());
  }
  void operator()(const part_ended& m) {
    auto p = to.initPartEnded();
    p.setJob(raw(m.job));
    p.setEpoch(m.epoch);
    p.setError(m.error.c_str());
    p.setActor(m.actor.c_str());
    p.setStep(m.step);
    p.setDataMessages(m.data_messages);
    p.setIsDerived(m.is_derived);
    write_reports(p.initShards(static_cast<unsigned>(m.shards.size())), m.shards);
  }
  void operator()(const halt_part& m) {
    auto h = to.initHalt();
    h.setJob(raw(m.job));
    h.setEpoch(m.epoch);
    h.setReason(m.reason);
  }
  void operator()(const part_halted& m) {
    auto h = to.initHalted();
    h.setJob(raw(m.job));
    h.setEpoch(m.epoch);
    auto kept = h.initKept(static_cast<unsigned>(m.kept.size()));
    for (unsigned i = 0; i < kept.size(); ++i) {
      kept[i].setVariable(m.kept[i].variable);
      write_list(kept[i].initVersions(static_cast<unsigned>(m.kept[i].versions.size())),
                 m.kept[i].versions);
      write_list(kept[i].initApplied(static_cast<unsigned>(m.kept[i].applied.size())),
                 m.kept[i].applied);
    }
    write_reports(h.initShards(static_cast<unsigned>(m.shards.size())), m.shards);
    h.setDataMessages(m.data_messages);
  }
  void operator()(const cancel_run& m) {
    auto c = to.initCancelRun();
    c.setJob(raw(m.job));
    c.setEpoch(m.epoch);
    c.setStep(m.step);
  }
  void operator()(const keep_journal& m) {
    auto k = to.initKeepJournal();
    k.setJob(raw(m.job));
    k.setNumber(m.number);
    k.setRecipe(data_of(m.recipe));
    k.setJournal(data_of(m.journal));
  }
  void operator()(const journal_kept& m) {
    auto k = to.initJournalKept();
    k.setJob(raw(m.job));
    k.setNumber(m.number);
    k.setError(m.error);
  }
  void operator()(const give_job& m) {
    auto t = to.initGiveJob();
    t.setJob(raw(m.job));
    t.setReason(m.reason);
  }
  void operator()(const ask_for_job& m) { to.setAskForJob(m.job); }
  void operator()(const job_refused& m) {
    auto r = to.initJobRefused();
    r.setJob(m.job);
    r.setReason(m.reason);
  }
  void operator()(const job_moved& m) {
    auto j = to.initJobMoved();
    j.setJob(raw(m.job));
    j.setEpoch(m.epoch);
    j.setNode(raw(m.node));
  }
  void operator()(const work_word& m) {
    auto w = to.initWorkWord();
    w.setJob(raw(m.job));
    w.setBytes(data_of(m.bytes));
  }
  void operator()(const begin_cut& m) {
    auto c = to.initBeginCut();
    c.setJob(raw(m.job));
    c.setEpoch(m.epoch);
    c.setMark(m.mark);
  }
  void operator()(const epoch_begun& m) {
    auto b = to.initBegun();
    b.setJob(raw(m.job));
    b.setEpoch(m.epoch);
  }
  void operator()(const leaving_node& m) { to.setLeaving(raw(m.job)); }
  void operator()(const part_saved& m) {
    auto s = to.initSaved();
    s.setJob(raw(m.job));
    s.setEpoch(m.epoch);
    s.setStep(m.step);
    s.setError(m.error);
    write_list(s.initWorkerSteps(static_cast<unsigned>(m.worker_steps.size())), m.worker_steps);
    s.setFile(m.file);
    s.setHash(m.hash);
    s.setBytes(m.bytes);
    auto variables = s.initVariables(static_cast<unsigned>(m.variables.size()));
    for (unsigned i = 0; i < variables.size(); ++i) variables.set(i, m.variables[i]);
  }
  void operator()(const part_noted& m) {
    auto n = to.initNoted();
    n.setJob(raw(m.job));
    n.setEpoch(m.epoch);
    n.setActor(m.actor);
    n.setStep(m.step);
    n.setText(m.text);
  }
  void operator()(const query& m) {
    auto q = to.initQuery();
    q.setId(m.id);
    q.setRequest(m.request.c_str());
  }
  void operator()(const answer& m) {
    auto a = to.initAnswer();
    a.setId(m.id);
    a.setJson(m.json.c_str());
  }
  void operator()(const lost_peer& m) {
    auto l = to.initLostPeer();
    l.setJob(raw(m.job));
    l.setNode(raw(m.node));
    l.setReason(m.reason.c_str());
    l.setHasLeft(m.has_left);
  }
  void operator()(const fenced& m) {
    auto f = to.initFenced();
    f.setReason(m.reason.c_str());
    f.setNodes(m.nodes);
    f.setJobs(m.jobs);
    f.setStartTimeNs(m.founder_start_time_ns);
    f.setId(raw(m.founder));
  }
  void operator()(const trace_query& m) { write_trace(to.initTraceQuery(), m); }
  void operator()(const trace_page& m) { write_trace(to.initTracePage(), m); }
};

result<control_message> read_view(wire::Control::Reader from) {
  view_update out;
  if (from.getView().size() > view_members_max)
    return error(error_code::usage, fmt::format("a view of {} members is beyond the limit of {}",
                                                from.getView().size(), view_members_max));
  for (auto m : from.getView()) {
    auto member = read_member(m);
    if (!member) return member.error();
    out.members.push_back(std::move(*member));
  }
  return control_message(std::move(out));
}

result<control_message> read_control(wire::Control::Reader from) {
  switch (from.which()) {
    case wire::Control::HEARTBEAT: return control_message(heartbeat{from.getHeartbeat()});
    case wire::Control::VIEW: return read_view(from);
    case wire::Control::LEAVE: return control_message(leave{text_of(from.getLeave())});
    case wire::Control::CREDITS: {
      credit_batch out;
      for (auto c : from.getCredits())
        out.credits.push_back({job_id{c.getJob()}, c.getEpoch(), c.getEdge(), c.getCount()});
      return control_message(std::move(out));
    }
    case wire::Control::PLACE: {
      auto p = from.getPlace();
      place_part out{job_id{p.getJob()},
                     p.getEpoch(),
                     bytes_of(p.getPlan()),
                     {},
                     text_of(p.getCheckpoints()),
                     text_of(p.getRestoreFrom()),
                     p.getMayMove(),
                     {p.getPlanLow(), p.getPlanHigh(), p.getPlanSize()}};
      for (auto n : p.getNodes()) out.nodes.push_back(node_id{n});
      return control_message(std::move(out));
    }
    case wire::Control::WANT_BLOB: {
      const auto w = from.getWantBlob();
      return control_message(
          want_blob{job_id{w.getJob()}, {w.getLow(), w.getHigh(), w.getSize()}, w.getOffset()});
    }
    case wire::Control::BLOB_PIECE: {
      const auto p = from.getBlobPiece();
      return control_message(blob_piece{job_id{p.getJob()},
                                        {p.getLow(), p.getHigh(), p.getSize()},
                                        p.getOffset(),
                                        bytes_of(p.getBytes()),
                                        text_of(p.getError())});
    }
    case wire::Control::PLACED: {
      const auto p = from.getPlaced();
      part_placed out{
          job_id{p.getJob()}, p.getEpoch(), text_of(p.getError()), node_id{p.getUnlinked()}, {}};
      for (const auto d : p.getData()) out.data.push_back({text_of(d.getWhat()), d.getHash()});
      return control_message(std::move(out));
    }
    case wire::Control::START: return control_message(start_part{job_id{from.getStart()}});
    case wire::Control::STOP:
      return control_message(
          stop_part{job_id{from.getStop().getJob()}, text_of(from.getStop().getReason())});
    case wire::Control::PART_ENDED: {
      auto p = from.getPartEnded();
      return control_message(part_ended{
          job_id{p.getJob()}, p.getEpoch(), text_of(p.getError()), text_of(p.getActor()),
          p.getStep(), read_reports(p.getShards()), p.getDataMessages(), p.getIsDerived()});
    }
    case wire::Control::HALT: {
      auto h = from.getHalt();
      return control_message(halt_part{job_id{h.getJob()}, h.getEpoch(), text_of(h.getReason())});
    }
    case wire::Control::HALTED: {
      auto h = from.getHalted();
      part_halted out{
          job_id{h.getJob()}, h.getEpoch(), {}, read_reports(h.getShards()), h.getDataMessages()};
      for (auto k : h.getKept())
        out.kept.push_back(
            {text_of(k.getVariable()), read_list(k.getVersions()), read_list(k.getApplied())});
      return control_message(std::move(out));
    }
    case wire::Control::BEGIN_CUT: {
      auto c = from.getBeginCut();
      return control_message(begin_cut{job_id{c.getJob()}, c.getEpoch(), c.getMark()});
    }
    case wire::Control::CANCEL_RUN: {
      auto c = from.getCancelRun();
      return control_message(cancel_run{job_id{c.getJob()}, c.getEpoch(), c.getStep()});
    }
    case wire::Control::KEEP_JOURNAL: {
      auto k = from.getKeepJournal();
      return control_message(keep_journal{job_id{k.getJob()}, k.getNumber(),
                                          bytes_of(k.getRecipe()), bytes_of(k.getJournal())});
    }
    case wire::Control::JOURNAL_KEPT: {
      auto k = from.getJournalKept();
      return control_message(
          journal_kept{job_id{k.getJob()}, k.getNumber(), text_of(k.getError())});
    }
    case wire::Control::GIVE_JOB: {
      auto t = from.getGiveJob();
      return control_message(give_job{job_id{t.getJob()}, text_of(t.getReason())});
    }
    case wire::Control::ASK_FOR_JOB:
      return control_message(ask_for_job{text_of(from.getAskForJob())});
    case wire::Control::JOB_REFUSED: {
      auto r = from.getJobRefused();
      return control_message(job_refused{text_of(r.getJob()), text_of(r.getReason())});
    }
    case wire::Control::JOB_MOVED: {
      auto j = from.getJobMoved();
      return control_message(job_moved{job_id{j.getJob()}, j.getEpoch(), node_id{j.getNode()}});
    }
    case wire::Control::WORK_WORD: {
      auto w = from.getWorkWord();
      if (w.getBytes().size() > work_word_bytes_max)
        return error(error_code::usage, fmt::format("a word of {} bytes is beyond the limit of {}",
                                                    w.getBytes().size(), work_word_bytes_max));
      return control_message(work_word{job_id{w.getJob()}, bytes_of(w.getBytes())});
    }
    case wire::Control::BEGUN:
      return control_message(
          epoch_begun{job_id{from.getBegun().getJob()}, from.getBegun().getEpoch()});
    case wire::Control::LEAVING: return control_message(leaving_node{job_id{from.getLeaving()}});
    case wire::Control::SAVED: {
      auto s = from.getSaved();
      part_saved out{job_id{s.getJob()},
                     s.getEpoch(),
                     s.getStep(),
                     text_of(s.getError()),
                     read_list(s.getWorkerSteps()),
                     text_of(s.getFile()),
                     text_of(s.getHash()),
                     s.getBytes(),
                     {}};
      for (auto v : s.getVariables()) out.variables.push_back(text_of(v));
      return control_message(std::move(out));
    }
    case wire::Control::NOTED: {
      auto n = from.getNoted();
      return control_message(part_noted{job_id{n.getJob()}, n.getEpoch(), text_of(n.getActor()),
                                        n.getStep(), text_of(n.getText())});
    }
    case wire::Control::QUERY:
      return control_message(query{from.getQuery().getId(), text_of(from.getQuery().getRequest())});
    case wire::Control::ANSWER:
      return control_message(answer{from.getAnswer().getId(), text_of(from.getAnswer().getJson())});
    case wire::Control::LOST_PEER: {
      auto l = from.getLostPeer();
      return control_message(lost_peer{job_id{l.getJob()}, node_id{l.getNode()},
                                       text_of(l.getReason()), l.getHasLeft()});
    }
    case wire::Control::FENCED: {
      auto f = from.getFenced();
      return control_message(fenced{text_of(f.getReason()), f.getNodes(), f.getJobs(),
                                    f.getStartTimeNs(), node_id{f.getId()}});
    }
    case wire::Control::TRACE_QUERY: {
      auto q = read_trace(from.getTraceQuery());
      return q ? result<control_message>(std::move(*q)) : q.error();
    }
    case wire::Control::TRACE_PAGE: {
      auto p = read_trace(from.getTracePage());
      return p ? result<control_message>(std::move(*p)) : p.error();
    }
  }
  return error(error_code::usage, fmt::format("control message {} is unknown to this version",
                                              static_cast<int>(from.which())));
}

// Runs `read` over a message in `bytes`, which must be whole words, aligned to 8.
template <class Read>
auto with_message(std::span<const std::byte> bytes, Read read)
    -> decltype(read(std::declval<capnp::FlatArrayMessageReader&>())) {
  if (bytes.size() % sizeof(capnp::word) != 0 ||
      reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(capnp::word) != 0)
    return error(error_code::usage, "a message is not a whole number of aligned words");
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 4 * bytes.size() / sizeof(capnp::word) + 64;
  options.nestingLimit = 16;
  try {
    capnp::FlatArrayMessageReader reader(
        kj::arrayPtr(reinterpret_cast<const capnp::word*>(bytes.data()),
                     bytes.size() / sizeof(capnp::word)),
        options);
    return read(reader);
  } catch (const kj::Exception& e) {
    return error(error_code::usage,
                 fmt::format("a message does not parse: {}", e.getDescription().cStr()));
  }
}

}  // namespace

bool is_for_node(const control_message& m) {
  // Each message is named, so that a new one does not compile until this says whose it is.
  struct {
    bool operator()(const heartbeat&) const { return false; }
    bool operator()(const view_update&) const { return false; }
    bool operator()(const leave&) const { return false; }
    bool operator()(const credit_batch&) const { return false; }
    bool operator()(const fenced&) const { return false; }
    bool operator()(const query&) const { return false; }
    bool operator()(const answer&) const { return false; }
    bool operator()(const trace_query&) const { return false; }
    bool operator()(const trace_page&) const { return false; }
    bool operator()(const place_part&) const { return true; }
    bool operator()(const part_placed&) const { return true; }
    bool operator()(const start_part&) const { return true; }
    bool operator()(const stop_part&) const { return true; }
    bool operator()(const part_ended&) const { return true; }
    bool operator()(const lost_peer&) const { return true; }
    bool operator()(const halt_part&) const { return true; }
    bool operator()(const part_halted&) const { return true; }
    bool operator()(const begin_cut&) const { return true; }
    bool operator()(const cancel_run&) const { return true; }
    bool operator()(const part_saved&) const { return true; }
    bool operator()(const leaving_node&) const { return true; }
    bool operator()(const epoch_begun&) const { return true; }
    bool operator()(const part_noted&) const { return true; }
    bool operator()(const keep_journal&) const { return true; }
    bool operator()(const journal_kept&) const { return true; }
    bool operator()(const give_job&) const { return true; }
    bool operator()(const ask_for_job&) const { return true; }
    bool operator()(const job_refused&) const { return true; }
    bool operator()(const job_moved&) const { return true; }
    bool operator()(const work_word&) const { return true; }
    bool operator()(const want_blob&) const { return true; }
    bool operator()(const blob_piece&) const { return true; }
  } takes;
  return std::visit(takes, m);
}

std::vector<std::byte> encode(const control_message& m) {
  capnp::MallocMessageBuilder message;
  std::visit(writer{message.initRoot<wire::Control>()}, m);
  return to_bytes(message);
}

result<control_message> decode_control(std::span<const std::byte> bytes) {
  return with_message(bytes, [](auto& reader) -> result<control_message> {
    return read_control(reader.template getRoot<wire::Control>());
  });
}

std::string_view to_string(lane l) noexcept { return l == lane::control ? "control" : "data"; }

std::vector<std::byte> encode(const identity& i) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<wire::Identity>();
  write_member(to.initMember(), i.member);
  to.setLane(static_cast<std::uint8_t>(i.lane));
  to.setReceived(i.received);
  to.setExpected(raw(i.expected));
  to.setLink(i.link);
  to.setBegins(i.begins);
  to.setProbeAddress(i.probe.address);
  to.setProbeValue(i.probe.value);
  return to_bytes(message);
}

result<identity> decode_identity(std::span<const std::byte> bytes) {
  return with_message(bytes, [](auto& reader) -> result<identity> {
    auto from = reader.template getRoot<wire::Identity>();
    if (from.getLane() > 1)
      return error(error_code::usage,
                   fmt::format("an identity names the unknown lane {}", from.getLane()));
    auto member = read_member(from.getMember());
    if (!member) return member.error();
    return identity{std::move(*member),
                    static_cast<lane>(from.getLane()),
                    from.getReceived(),
                    node_id{from.getExpected()},
                    from.getLink(),
                    from.getBegins(),
                    {from.getProbeAddress(), from.getProbeValue()}};
  });
}

std::vector<std::byte> encode(const chunk_header& h) {
  capnp::word scratch[64] = {};
  capnp::MallocMessageBuilder message(kj::arrayPtr(scratch, 64));
  auto c = message.initRoot<wire::Chunk>();
  c.setJob(raw(h.job));
  c.setEpoch(h.epoch);
  c.setEdge(h.edge);
  c.setSender(raw(h.sender));
  c.setReceiver(raw(h.receiver));
  auto t = c.initTag();
  t.setStep(h.t.step);
  t.setRun(h.t.run);
  t.setMicroBatch(h.t.micro_batch);
  t.setFrame(static_cast<std::uint32_t>(h.t.frame));
  t.setFrameHigh(static_cast<std::uint32_t>(h.t.frame >> 32U));
  t.setIteration(h.t.iteration);
  t.setMark(h.t.mark);
  t.setDead(h.t.dead);
  c.setSequence(h.sequence);
  c.setDtype(static_cast<std::uint8_t>(h.spec.type));
  auto dims = c.initDims(static_cast<unsigned>(h.spec.shape.rank()));
  for (unsigned i = 0; i < dims.size(); ++i) dims.set(i, h.spec.shape.size(i));
  c.setTotalBytes(h.spec.size_bytes());
  c.setOffset(h.offset);
  c.setPart(h.part);
  return to_bytes(message);
}

result<chunk_header> decode_chunk(std::span<const std::byte> bytes) {
  return with_message(bytes, [](auto& reader) -> result<chunk_header> {
    auto c = reader.template getRoot<wire::Chunk>();
    if (c.getDtype() >= dtype_count)
      return error(error_code::usage,
                   fmt::format("a chunk has the unknown dtype {}", c.getDtype()));
    std::vector<dim> dims;
    if (c.getDims().size() > shape::rank_max)
      return error(error_code::usage, "a chunk has more than 8 dimensions");
    for (auto d : c.getDims()) dims.push_back({d, 0});
    const auto s = shape::from(dims);
    std::int64_t bytes_in_all = 0;
    if (!s ||
        __builtin_mul_overflow(s->elements(),
                               static_cast<std::int64_t>(size_of(static_cast<dtype>(c.getDtype()))),
                               &bytes_in_all) ||
        static_cast<std::uint64_t>(bytes_in_all) != c.getTotalBytes())
      return error(error_code::usage, "a chunk's dimensions do not fit its total length");
    const auto t = c.getTag();
    if (t.getMicroBatch() > std::numeric_limits<std::uint16_t>::max())
      return error(
          error_code::usage,
          fmt::format("a chunk names micro-batch {}, which is above the limit", t.getMicroBatch()));
    if (t.getDead() != 0 && c.getTotalBytes() != 0)
      return error(error_code::usage,
                   "a chunk marks its token as dead, but has bytes: a dead token carries no value");
    const tag at{.step = t.getStep(),
                 .frame = std::uint64_t{t.getFrameHigh()} << 32U | t.getFrame(),
                 .run = t.getRun(),
                 .iteration = t.getIteration(),
                 .mark = t.getMark(),
                 .micro_batch = static_cast<std::uint16_t>(t.getMicroBatch()),
                 .dead = t.getDead()};
    return chunk_header{job_id{c.getJob()},
                        c.getEpoch(),
                        c.getEdge(),
                        node_id{c.getSender()},
                        node_id{c.getReceiver()},
                        at,
                        c.getSequence(),
                        tensor_spec{static_cast<dtype>(c.getDtype()), *s},
                        c.getOffset(),
                        c.getPart()};
  });
}

}  // namespace troupe
