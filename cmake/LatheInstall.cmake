# The shared library of all layers, and what find_package(lathe) finds. Nothing of our third-party libraries shows in
# the installed headers or in the exported target.
set(layers lathe_base lathe_graph lathe_jit lathe_cache lathe_tuner lathe_ops lathe_runtime)
set(objects "")
foreach(layer ${layers})
  list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()

add_library(lathe SHARED ${objects})
add_library(lathe::lathe ALIAS lathe)
lathe_warnings(lathe)
target_compile_features(lathe PUBLIC cxx_std_20)
target_include_directories(lathe PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(lathe PRIVATE Threads::Threads fmt::fmt PkgConfig::HWLOC PkgConfig::RE2 ${LATHE_IMAGE_LIBRARIES} onnx_proto asmjit::asmjit SQLite::SQLite3)
# Only names of namespace lathe are visible: an application's own copy of asmjit or fmt stays apart from ours.
set(version_script ${PROJECT_SOURCE_DIR}/cmake/lathe.map)
target_link_options(lathe PRIVATE -Wl,--version-script=${version_script} -Wl,--no-undefined)
if(LATHE_SANITIZE)
  # The sanitizers' own names are found in the program, not in the library.
  target_link_options(lathe PRIVATE -Wl,-z,undefs)
endif()
set_target_properties(lathe PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE CXX
                                       LINK_DEPENDS ${version_script})

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lathe)
install(TARGETS lathe EXPORT latheTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lathe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(EXPORT latheTargets NAMESPACE lathe:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/latheConfig.cmake.in ${PROJECT_BINARY_DIR}/latheConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/latheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/latheConfig.cmake ${PROJECT_BINARY_DIR}/latheConfigVersion.cmake
        DESTINATION ${package_dir})
