# `cmake --install build --prefix DIR`: programs, manual pages, libraries, headers, and a package that other projects find:
#   find_package(troupe REQUIRED)
#   target_link_libraries(app PRIVATE troupe::troupe)
# Two components: programs, and development (what a project of one's own needs).
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)

set(programs train_classifier train_language_model train_embedding train_from_threads train_towers onnx_run troupe-node troupe-tool troupe-bench troupe-sim)
install(TARGETS ${programs} RUNTIME COMPONENT programs)
install(DIRECTORY tools/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT programs FILES_MATCHING PATTERN "*.1")
install(FILES tools/grafana/troupe.json DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe COMPONENT programs)
# What programs reach from the front door, and nothing else (tests/front_door.py).
file(STRINGS actors/api/headers.txt headers)
foreach(header ${headers})
  cmake_path(GET header PARENT_PATH folder)
  if(folder STREQUAL "actors/api/troupe")
    set(folder "")
  endif()
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe/${folder} COMPONENT development)
endforeach()
# The examples build there as they do here: cmake -S PREFIX/share/troupe/examples/apps -B build.
install(DIRECTORY apps DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/examples COMPONENT development)
install(FILES tools/cmake/embed.cmake DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/examples/apps COMPONENT development)

set(of_cuda "")
if(TROUPE_HAS_CUDA)
  set(of_cuda troupe_cuda)
endif()
set(libraries troupe_options troupe_ops troupe_stages troupe_loops troupe_caf troupe_dnnl troupe_xxhash troupe_asio troupe_zstd)
set(archives troupe troupe_program troupe_cli11 troupe_onnx troupe_images troupe_models troupe_pipelines troupe_flow troupe_actors troupe_gpus ${of_cuda} troupe_runtime troupe_devices troupe_schema)
install(TARGETS ${archives} ${libraries} EXPORT troupe ARCHIVE COMPONENT development)
install(EXPORT troupe NAMESPACE troupe:: FILE troupe-targets.cmake DESTINATION ${package_folder} COMPONENT development)
configure_file(tools/cmake/troupe-config.cmake troupe-config.cmake @ONLY)
write_basic_package_version_file(troupe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/troupe-config.cmake ${PROJECT_BINARY_DIR}/troupe-config-version.cmake
        DESTINATION ${package_folder} COMPONENT development)

# --- packages for Debian: tools/package -----------------------------------------------------------

install(PROGRAMS tools/deploy/troupe.slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/deploy COMPONENT programs)
install(FILES tools/deploy/kubernetes.yaml tools/deploy/Containerfile DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/deploy COMPONENT programs)
# Where completion looks for them. The program writes them, so they are what it knows.
foreach(file bash-completion/completions/troupe zsh/vendor-completions/_troupe fish/vendor_completions.d/troupe.fish)
  string(REGEX MATCH "^[a-z]+" shell ${file})
  cmake_path(GET file PARENT_PATH folder)
  install(CODE "file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${folder}\")
execute_process(COMMAND $<TARGET_FILE:troupe-tool> completion ${shell} OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${file}\" COMMAND_ERROR_IS_FATAL ANY)"
          COMPONENT programs)
endforeach()
# All that is installed, and no test.
add_custom_target(installed DEPENDS ${programs} ${archives})
# Beside systemd's own files, which are no matter of a prefix: in a package only.
if(TROUPE_SYSTEM_PACKAGE)
  install(FILES tools/deploy/systemd/troupe-node@.service DESTINATION /lib/systemd/system COMPONENT programs)
  install(FILES tools/deploy/systemd/sysusers.conf DESTINATION /usr/lib/sysusers.d RENAME troupe.conf COMPONENT programs)
  install(FILES tools/deploy/systemd/node.conf DESTINATION /etc/troupe COMPONENT programs)
  install(FILES tools/deploy/debian/copyright DESTINATION /usr/share/doc/troupe COMPONENT programs)
  install(FILES tools/deploy/debian/copyright DESTINATION /usr/share/doc/troupe-dev COMPONENT development)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_NAME troupe)
  set(CPACK_PACKAGE_VENDOR "Troupe")
  set(CPACK_PACKAGE_CONTACT "The developers of Troupe <troupe@localhost>")
  set(CPACK_GENERATOR DEB)
  set(CPACK_SET_DESTDIR ON)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL programs development)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME troupe)
  set(CPACK_DEBIAN_PROGRAMS_DESCRIPTION "actor-model engine for distributed tensor dataflow: programs
 Node processes, the debug tool, the simulator, benchmarks, and systemd units that run nodes.")
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "troupe-dev")
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/tools/deploy/debian/postinst;${PROJECT_SOURCE_DIR}/tools/deploy/debian/prerm;${PROJECT_SOURCE_DIR}/tools/deploy/debian/postrm;${PROJECT_BINARY_DIR}/conffiles")
  file(WRITE ${PROJECT_BINARY_DIR}/conffiles "/etc/troupe/node.conf\n")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME troupe-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "actor-model engine for distributed tensor dataflow: library
 Headers, static libraries, a CMake package and the examples.")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "g++, cmake, libcaf-dev, libcapnp-dev, libprotobuf-dev, protobuf-compiler, libdnnl-dev, libboost-dev, libfmt-dev, libcli11-dev, nlohmann-json3-dev, libxxhash-dev, libssl-dev, zlib1g-dev, libzstd-dev, libpng-dev, libjpeg62-turbo-dev")
  include(CPack)
endif()
