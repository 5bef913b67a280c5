set(SOURCES catalog.cpp chart.cpp contestant.cpp measurement.cpp messages.cpp operation.cpp pattern
        .cpp private_socket.cpp rank_set.cpp report.cpp report_html.cpp report_json.cpp report_text
        .cpp session.cpp size_list.cpp start_line.cpp statistics.cpp worker.cpp)
    set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
