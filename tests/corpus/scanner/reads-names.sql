SELECT "{{", `}}`, [{{x}}], '{{LLMQA(1)}}', 'it''s {{' FROM "o'clock"
