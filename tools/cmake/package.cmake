# `cmake --install build --prefix DIR`: programs, manual pages, libraries, headers, and a package that other projects find:
#   find_package(troupe REQUIRED)
#   target_link_libraries(app PRIVATE troupe::troupe)
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)

install(TARGETS train_classifier train_language_model train_embedding train_from_threads train_towers onnx_run troupe-node troupe-tool troupe-bench troupe-sim RUNTIME)
install(DIRECTORY tools/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(FILES tools/grafana/troupe.json DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe)
# What programs reach from the front door, and nothing else (tests/front_door.py).
file(STRINGS actors/api/headers.txt headers)
foreach(header ${headers})
  cmake_path(GET header PARENT_PATH folder)
  if(folder STREQUAL "actors/api/troupe")
    set(folder "")
  endif()
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe/${folder})
endforeach()
# The examples build there as they do here: cmake -S PREFIX/share/troupe/examples/apps -B build.
install(DIRECTORY apps DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/examples)
install(FILES tools/cmake/embed.cmake DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/examples/apps)

set(of_cuda "")
if(TROUPE_HAS_CUDA)
  set(of_cuda troupe_cuda)
endif()
install(TARGETS troupe troupe_program troupe_cli11 troupe_onnx troupe_images troupe_models troupe_pipelines troupe_flow troupe_actors troupe_gpus ${of_cuda} troupe_runtime troupe_devices troupe_schema
                troupe_options troupe_ops troupe_stages troupe_loops troupe_caf troupe_dnnl troupe_xxhash troupe_asio troupe_zstd EXPORT troupe ARCHIVE)
install(EXPORT troupe NAMESPACE troupe:: FILE troupe-targets.cmake DESTINATION ${package_folder})
configure_file(tools/cmake/troupe-config.cmake troupe-config.cmake @ONLY)
write_basic_package_version_file(troupe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/troupe-config.cmake ${PROJECT_BINARY_DIR}/troupe-config-version.cmake
        DESTINATION ${package_folder})
