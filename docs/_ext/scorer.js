// What a search ranks first. Sphinx finds the pages that have all words of a query, in the order of
// the alphabet. Here those come first whose title and keywords have most of these words, and last
// what only lists things. `tests/docs_search.py` ranks in the same way.

var Scorer = (() => {
  const LISTS = new Set(["changelog", "contributing", "design", "gallery/index", "index", "performance"]);
  const stemmer = new Stemmer();
  let asked, subjects;

  const stems = (text) =>
    splitQuery(text.toLowerCase())
      .filter((word) => !stopwords.has(word) && !/^\d+$/.test(word))
      .map((word) => stemmer.stemWord(word));

  // The stems of title and keywords, page by page.
  const collect = ({ docnames, titles, indexentries }) => {
    const found = titles.map((title) => new Set(stems(title)));
    for (const [entry, places] of Object.entries(indexentries))
      for (const [page, , main] of places)
        if (main) stems(entry).forEach((stem) => found[page].add(stem));
    return new Map(docnames.map((name, page) => [name, found[page]]));
  };

  return {
    score: ([name, , , , score]) => {
      asked ??= stems(new URLSearchParams(window.location.search).get("q") ?? "");
      subjects ??= collect(Search._index);
      const hits = asked.filter((stem) => subjects.get(name).has(stem)).length;
      return score + (30 * hits) / (asked.length || 1) - (LISTS.has(name) ? 10 : 0);
    },
    // the rest is Sphinx's own
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
  };
})();
