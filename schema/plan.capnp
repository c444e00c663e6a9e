@0xa6c3f0b1d4e95721;
# A plan: everything that the nodes of a job need to run it. The C++ side, with the meaning of every field and the invariants
# PL-1..PL-12, is runtime/plan/plan.hpp; the codec is runtime/plan/plan_codec.cpp.
#
# Who sends it: the program that starts a job, to every node that takes part (wire.capnp, `place`), whole. A node
# decodes it, checks it, and spawns the actors of its own task; what it does not spawn it knows as neighbours.
#
# Actors, edges, tasks and files are numbered by their position in their list; those numbers are the ids that
# chunks and credits on the wire carry, equal on every node of the job and constant for its life.
#
# A reader takes any bytes: too many elements in a list, a number without meaning, a reference to something that is not
# there, or a broken invariant make the whole plan an error. Fields are never removed or renumbered; new ones have a
# default that means what older writers meant. Numbers of dtypes, kinds and updates are those of the C++ enums.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::wire");

struct Plan {
  name @0 :Text;              # of the job
  seed @1 :UInt64;
  update @2 :UInt8;           # 0 sync, 1 async
  workers @3 :UInt32;         # logical workers; 0: not a training plan
  shards @4 :UInt32;
  tasks @5 :List(Task);
  actors @6 :List(PlannedActor);
  edges @7 :List(PlannedEdge);
  files @8 :List(Text);       # source files that lines refer to
  libraries @9 :List(Library);  # of users, whose ops stand in the plan
  buffers @10 :List(Buffer);  # that several ops write in turn
  stepsInFlight @11 :UInt32 = 1;  # of one worker at a time: copies of every buffer
  onNan @12 :UInt8;           # 0 ignore, 1 stop, 2 warn, 3 skip
  apart @13 :List(Apart);     # attributes that are empty here, and whose bytes come by themselves (wire.capnp, wantBlob)
}

struct Apart {
  actor @0 :UInt32;
  op @1 :UInt32;              # of the actor
  attribute @2 :Text;
  low @3 :UInt64;             # XXH3, 128 bits
  high @4 :UInt64;
  bytes @5 :UInt64;           # how many
}

# Memory of a stream of a task. Its uses are the output ports that name it, in the order of the actors.
struct Buffer {
  task @0 :UInt32;
  stream @1 :UInt32;
  bytes @2 :UInt64;
}

# A node that has not this very build refuses the plan.
struct Library {
  name @0 :Text;
  version @1 :Text;
  abi @2 :UInt64;
  ops @3 :List(Text);         # types of ops of the plan that are this library's
}

struct Task {
  name @0 :Text;              # "/job:worker/task:0"
  isClient @1 :Bool;          # runs in the program that started the job
  node @2 :UInt64;            # who runs it; 0 until the job is placed
}

struct Line { file @0 :UInt32; line @1 :UInt32; }   # file: 1 + its number in files; 0: unknown

struct Dim { size @0 :Int64; symbol @1 :UInt8; }    # symbol 0: exact; else the size is a bound
struct TensorSpec { dtype @0 :UInt8; dims @1 :List(Dim); }

struct Attribute {
  name @0 :Text;
  union { integer @1 :Int64; real @2 :Float64; text @3 :Text; integers @4 :List(Int64); data @5 :Data; }
}

# One op of an op actor; a fused group has several.
struct PlannedOp {
  type @0 :Text;
  name @1 :Text;
  attributes @2 :List(Attribute);
  operands @3 :List(Int32);   # >= 0: input port of the actor; < 0: output 0 of op -1 - operand
  source @4 :Line;
}

# An output port of a shard and the versions that it sends.
struct ShardReader { worker @0 :Int32; first @1 :UInt64; stride @2 :UInt64; atEnd @3 :Bool; }

# What an optimizer has beside its name, learning rate and momentum; by default what plans meant that did not have it.
struct OptimizerNumbers {
  nesterov @0 :Bool;
  weightDecay @1 :Float64;
  beta1 @2 :Float64 = 0.9;
  beta2 @3 :Float64 = 0.999;
  alpha @4 :Float64 = 0.99;
  centered @5 :Bool;
  epsilon @6 :Float64 = 1e-8;
  learningRateDecay @7 :Float64;
  initialAccumulator @8 :Float64;
  clipValue @9 :Float64;      # 0: not
  clipNorm @10 :Float64;      # 0: not
}

# Of the learning rate.
struct Schedule {
  kind @0 :UInt8;             # 0 constant, 1 step decay, 2 exponential, 3 cosine, 4 linear, 5 inverse square root
  warmup @1 :UInt64;
  every @2 :UInt64 = 1;
  decay @3 :Float64 = 1;
  steps @4 :UInt64;
  minimum @5 :Float64;
  timescale @6 :UInt64;
}

struct Shard {
  variable @0 :Text;
  spec @1 :TensorSpec;
  shard @2 :UInt32;
  update @3 :UInt8;
  optimizer @4 :Text;
  learningRate @5 :Float64;
  momentum @6 :Float64;
  initializer @7 :UInt8;      # 0 zeros, 1 uniform in [-limit, limit), 2 normal, its deviation, 3 constant, its number: limit; 4 first: that in element 0, else 0
  limit @8 :Float64;
  seed @9 :UInt64;
  steps @10 :List(UInt64);    # per logical worker
  readers @11 :List(ShardReader);  # per output port
  restore @12 :UInt8;         # 0 the initializer, 1 what the node keeps, 2 what another node hands over
  version @13 :UInt64;
  start @14 :List(UInt64);    # per logical worker; empty: 0
  keeps @15 :UInt32;
  cutEvery @16 :UInt64;
  cutsAtEnd @17 :Bool;
  isRecoverable @18 :Bool;
  isSaved @19 :Bool;
  handed @20 :List(UInt64);   # per logical worker
  forwards @21 :Bool;         # to a replica
  follows @22 :Bool;          # it is one
  optimizerNumbers @23 :OptimizerNumbers;
  schedule @24 :Schedule;
  pushesRows @25 :Bool;
  averageRate @26 :Float64;
  averageSamples @27 :UInt32; # 0: it is no moving average
  takesSums @28 :Bool;        # of a collective
  leavesOutMarked @29 :Bool;  # steps of which a gradient begins with a number that is not finite
  lossScaleSamples @30 :UInt32;    # 0: it is no scale of a loss
  lossScaleGrowsEvery @31 :UInt64; # good steps
}

# A rank of a collective (runtime/plan/collective.hpp); its numbers of kinds, reductions and algorithms.
struct Collective {
  kind @0 :UInt8;
  reduction @1 :UInt8;
  algorithm @2 :UInt8;
  dtype @3 :UInt8;
  rank @4 :UInt32;
  root @5 :UInt32;
  elements @6 :Int64;
  pieceElements @7 :Int64;
  parts @8 :List(List(UInt32));  # by rank
  tensors @9 :UInt32;
  workers @10 :List(UInt32);     # of the own parts
  buckets @11 :List(UInt32);     # of a rank on a device: how many tensors each of its operations takes; empty: on the host
  isInOrder @12 :Bool = true;    # there: sums have the order of the parts
}

# Edges are written once, in Plan.edges; which edges a port has follows from them. The edges of an output port are in the order
# of the list.
struct PlannedActor {
  kind @0 :UInt8;             # 0 op, 1 shard, 2 send, 3 receive, 4 feed, 5 fetch, 12 collective, 13 copy
  name @1 :Text;
  task @2 :UInt32;
  stream @3 :UInt32;          # of the host; from 2^24 on: of device gpu:(stream - 2^24)
  ops @4 :List(PlannedOp);    # kind op
  shard @5 :Shard;            # kind shard
  inputs @6 :UInt32;          # number of input ports
  outputs @7 :List(TensorSpec);
  steps @8 :UInt64;
  firesOnAny @9 :Bool;
  source @10 :Line;
  start @11 :UInt64;
  marksCuts @12 :Bool;
  awaitsReceipt @13 :Bool;
  buffers @14 :List(Int32);   # per output port: number of the buffer; -1: memory of its own. Empty: all have their own
  handsOn @15 :Bool;          # kind op: output 0 is input 0, the same tensor
  inPlace @16 :Int32 = -1;    # kind op: the input port whose buffer output 0 is written over
  sticky @18 :List(UInt16);   # kind op, in loops: by input port, not 0: the item stays until a firing is dead at or below this level; empty: none does
  loopLevel @17 :UInt16;      # in loops: the level of the outermost body around it (runtime/plan/loop_rules.hpp)
  places @19 :List(UInt32);   # kind fetch, of a graph that is stepped: by input port, where its value stands among all that are fetched; empty: it is alone
  collective @20 :Collective; # kind collective
  kernels @21 :List(Kernel);  # kind op on a device: a segment
  arenaBytes @22 :UInt64;     # of it
  copy @23 :UInt8;            # kind copy: 1 into a device's memory, 2 out of it, 3 across from another device
}

# Consecutive ops of a segment that a device runs as one kernel. Values of a segment are numbered as its kernels make them, output by output.
struct Kernel {
  firstOp @0 :UInt32;
  operands @1 :List(Int32);   # >= 0: input port of the actor; < 0: value -1 - operand
  results @2 :List(TensorSpec);
  places @3 :List(Int64);     # by result: >= 0: bytes from the beginning of the arena; < 0: output port -1 - place
}

# The spec of an edge is that of the output port it leaves.
struct PlannedEdge {
  fromActor @0 :UInt32;
  fromPort @1 :UInt32;
  toActor @2 :UInt32;
  toPort @3 :UInt32;
  credits @4 :UInt32;
}
