# Counts reports of compute-sanitizer: those of Troupe's kernels and calls, and those of libraries'. -v tool=NAME. Prints a line, and the first reports of our own; exit code 1 where there are some.
#
# A report is a line behind "========= " and those behind it that are indented. It is a library's where the kernel that it names is none of troupe's, or, where it names none, where the call came
# from a library of NVIDIA's.

# "fused" is the name of generated kernels.
function is_own(text) { return text ~ /troupe/ || text ~ /(^|[^A-Za-z0-9_])fused(\(|\+0x| |$)/ }
function flush_report() {
  if (report == "") return
  if (has_kernel ? !is_ours : is_library) libraries++
  else {
    own++
    if (own <= 5) shown = shown report
  }
  report = ""
}

/^========= (COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|Target application|Program finished)/ { flush_report(); ended = ended || /SUMMARY/; next }
/^========= [^ ]/ { flush_report(); report = $0 "\n"; has_kernel = is_ours = is_library = 0; if (is_own($0)) has_kernel = is_ours = 1; next }
/^=========  / {
  if (report == "") next
  report = report $0 "\n"
  if (/(^=========  +at |Device Frame: ?|(access|Access) (by|at) .* (at|in) )/ && !/Host Frame/) {
    has_kernel = 1
    if (is_own($0)) is_ours = 1
  }
  if (/Host Frame/ && /lib(cublas|cudnn|nccl|nvrtc|nvJitLink)/) is_library = 1
  next
}
/^=========$/ { flush_report(); next }
{ next }

END {
  flush_report()
  printf "%s: %d reports of our kernels and calls, %d of libraries%s\n", tool, own, libraries, ended ? "" : " (it did not come to its end)"
  printf "%s", shown
  exit own > 0 || !ended
}
