// Order of search results: pages that explain, then examples and names, then members of classes.
var Scorer = {
  score: ([page, , anchor, , score, , kind]) => {
    if (kind === "title") return score + 10;
    if (page.startsWith("api/generated/")) {
      const isMember = anchor && anchor !== "#" + page.replace("api/generated/", "");
      return score - (isMember ? 10 : kind === "text" ? 4 : 0);
    }
    return score - (["changelog", "contributing", "architecture"].includes(page) ? 2 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
